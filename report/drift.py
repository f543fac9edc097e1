"""The part of a report that tells what the monitors found: alarms, and who tried what a program must not."""
from report.layout import curves, figure, section, table
from report.population import by_member
from report.run import RunLog, items, num
from report.svg import stack_chart, text

MOST = 200                          # alarms, and members, in a table


def alarms(run: RunLog) -> list[tuple[str, int, int, str]]:
    """(monitor, first step, last step, what it said first) of each alarm, in the order of their beginning."""
    found, going = [], {}
    for row in run.metrics:
        said = items(row, "alarms")
        going = {name: at for name, at in going.items() if name in said}
        for name, words in said.items():
            if name not in going:
                going[name] = len(found)
                found.append((name, row["step"], row["step"], str(words)))
            name, first, _, words = found[going[name]]
            found[going[name]] = (name, first, row["step"], words)
    return found


def alarm_table(run: RunLog) -> str:
    """The alarms as a table; that there were none; "" where the run did not log it."""
    if not any("alarms" in row for row in run.metrics):
        return ""
    found = alarms(run)
    if not found:
        return "<p>No monitor gave alarm.</p>"
    rows = []
    for name, first, last, words in found[:MOST]:
        rows.append(f"<td>{text(name, 40)}</td><td>{first}</td><td>{last}</td>"
                    f'<td class="prose">{text(words, 300)}</td>')
    rest = f'<p class="note">the first {MOST} of {len(found)}</p>' if len(found) > MOST else ""
    return table(("monitor", "from step", "to step", "what it said first"), rows) + rest


def tried_table(run: RunLog) -> str:
    """Members with texts that try what they must not, the worst first; "" where the run did not log it."""
    totals, logged = [], False
    for m in run.members.values():
        counts = [n for _, n in m.points("escapes") if n is not None]
        logged |= bool(counts)
        if sum(counts):
            totals.append((sum(counts), m))
    if not totals:
        return "<p>No text of any member did.</p>" if logged else ""
    totals.sort(key=lambda entry: -entry[0])
    rows = []
    for n, m in totals[:MOST]:
        first = next(step for step, some in m.points("escapes") if some)
        rows.append(f"<td>{text(m.name, 40)}</td><td>{m.role}</td><td>{n:,.0f}</td><td>{first}</td>")
    return table(("member", "role", "texts", "first in step"), rows)


def tried_by_step(run: RunLog) -> dict[str, dict[int, float]]:
    """{what: {step: texts that try it}}."""
    layers = {}
    for name in run.names("escapes", 6):
        layers[name] = {row["step"]: num(row, "escapes", name) or 0 for row in run.metrics}
    return layers


def drift(run: RunLog) -> str:
    """Alarms, escapes, failures of the sandbox."""
    failures = [n for _, n in run.points("sandbox_failures") if n is not None]
    words = ("What the monitors say at the end of every step, for collapse, gaming, forgetting and escape "
             "(docs/advanced/drift.md).")
    if failures:
        words += f" Rows left out because the sandbox itself failed: {sum(failures):,.0f}."
    figures = [
        figure("Alarms", "From the first to the last step in which a monitor gave alarm.", alarm_table(run),
               wide=True),
        figure("Who tries what they must not", "Texts of each member with an import, a call or a name that "
               "leads out of a program, or whose program the sandbox ended for a forbidden system call. The "
               "sandbox is the wall: this is what was tried.", tried_table(run), wide=True)]
    layers = tried_by_step(run)
    if layers:
        figures.append(figure("What is tried", "Texts of a step, by what they try; one text may try several "
                              "things.", stack_chart("texts that try what they must not", layers)))
        for role in ("teacher", "student"):
            figures.append(curves(f"Who tries it: {role}s", "Texts a step; bold: mean.",
                                  by_member(run, role, "escapes")))
    return section("drift", "Drift", words, figures)
