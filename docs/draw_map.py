"""Draws docs/map.svg from the packed runs: PYTHONPATH=. python docs/draw_map.py, at the root. A row a contrast, its interval and verdict."""
from eval.population import measures, runs

ONE, BEST, PAIR = "one adapter", "best of four single runs", "one pair"
# heading, coefficient of variation, then for each group of contrasts that is corrected by itself: runs, reference, measure, second arm -> label
GROUNDS = [
    ("One habit (area)", ".10", [("", "full", "area", {"single-long": f"population - {ONE}", "pair": f"population - {PAIR}"})]),
    ("Two types", "", [
        ("niches", "niches-add", "deployed", {"generalists": "niches - generalists", "single-long": f"niches - {ONE}", "crossed": "niches - two crossed at the end"}),
        ("niches", "niches-add", "deployed", {"singles": f"niches - {BEST}", "generalists-mixed": "niches - generalists with births", "copy": "niches - generalists with copies",
                                              "pair": f"niches - {PAIR}", "niches-layerwise": "crossed by add - by layerwise", "niches-mixed": "crossed by add - by mixed operators"})]),
    ("Unknown rate", "", [
        ("rates", "pbt", "deployed", {"spread": "births that inherit rates - no births", "singles": f"births that inherit rates - {BEST}"}),
        ("rates", "spread", "deployed", {"one": "four rates - one", "singles": f"no births - {BEST}", "pair": f"no births - {PAIR}"})]),
    ("Rare habit", ".21", [
        ("rare", "copy", "deployed", {"single-long": f"copies - {ONE}", "singles": f"copies - {BEST}", "no-evolution": "copies - no births"}),
        ("rare", "copy", "deployed", {"pair": f"copies - {PAIR}", "full": "copies - mixed births"})]),
    ("Two hills", ".49", [
        ("hills", "copy", "deployed", {"single-long": f"copies - {ONE}", "singles": f"copies - {BEST}"}),
        ("hills", "copy", "deployed", {"no-evolution": "copies - no births", "pair": f"copies - {PAIR}", "full": "copies - mixed births"}),
        ("hills", "selection", "deployed", {"no-evolution": "best copied late - no births"}),
        ("hills", "selection", "deployed", {"singles": f"best copied late - {BEST}", "single-long": f"best copied late - {ONE}"})]),
    ("Two hills, base made again", "", [("hills2", "copy", "deployed", {"singles": f"copies - {BEST}", "no-evolution": "copies - no births"})]),
    ("Matching, half of the students broken", "", [("matching2", "pfsp", "deployed", {"uniform": "PFSP - uniform"})]),
    ("Mean over students", "", [
        ("rates", "pbt", "end", {"spread": "unknown rate: births - no births", "singles": "unknown rate: births - four single runs"}),
        ("hills", "selection", "end", {"no-evolution": "two hills: best copied late - no births"}),
        ("hills", "selection", "end", {"singles": "two hills: best copied late - four single runs"}),
        ("rare", "copy", "end", {"no-evolution": "rare habit: copies - no births", "singles": "rare habit: copies - four single runs"})])]
W, LEFT, RIGHT, MOST = 860, 400, 800, .6
KINDS = {"ahead": "ahead", "behind": "behind", "level": "level", "not tested": "hollow"}
CSS = ("text{font:13px system-ui,sans-serif;fill:#333}.head{font-weight:600}.grid{stroke:#e4e4e4}.zero{stroke:#888}g path{stroke-width:2.5}"
       ".ahead{stroke:#1b9e77;fill:#1b9e77}.behind{stroke:#d95f02;fill:#d95f02}.level{stroke:#1f77b4;fill:#1f77b4}.open{stroke:#999;fill:#999}"
       ".hollow{stroke:#999;fill:none}.num{font-size:12px}@media (prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#3a3a3a}.zero{stroke:#999}}")


def x(value):
    return LEFT + (max(-MOST, min(MOST, value)) + MOST) / (2 * MOST) * (RIGHT - LEFT)


def rows(source, reference, measure, labels):
    """(label, contrast) of the arms that are packed; each contrast as the page's own command prints it."""
    experiment = runs.opened([f"docs/results/{source}"])
    arms = [arm for arm in labels if arm in experiment.arms]
    return [(labels[line["other"]], line) for line in measures.conclude(experiment, arms, reference, measure, .6)["contrasts"]]


def main():
    grounds = [(name, cv, [row for group in groups for row in rows(*group)]) for name, cv, groups in GROUNDS]
    height = 44 + sum(34 + 24 * len(lines) for _, _, lines in grounds) + 44
    body, y = "", 44
    for t in range(-6, 7, 2):
        body += f'<path class="{"grid" if t else "zero"}" d="M{x(t / 10):.0f} 30V{height - 44}"/>'
        body += f'<text class="num" x="{x(t / 10):.0f}" y="{height - 28}" text-anchor="middle">{f"{t / 10:+.1f}" if t else 0}</text>'
    for name, cv, lines in grounds:
        y += 18
        body += f'<text class="head" x="14" y="{y}">{name}</text><text x="330" y="{y}" text-anchor="end">{cv and f"CV {cv}"}</text>'
        y += 8
        for label, line in lines:
            y += 20
            low, high = line["interval"]
            title = f'{label}: {line["difference"]:+.3f} ({low:+.3f} .. {high:+.3f}), {line["verdict"]}'
            body += (f'<text x="30" y="{y}">{label.replace(" - ", " − ")}</text><g class="{KINDS.get(line["verdict"].split(",")[0], "open")}"><title>{title}</title>'
                     f'<path d="M{x(low):.1f} {y - 5}H{x(high):.1f}"/><circle cx="{x(line["difference"]):.1f}" cy="{y - 5}" r="4.5"/></g>')
            y += 4
        y += 8
    foot = "accuracy, 95% interval; green ahead, orange behind, blue level, grey cannot tell, hollow not tested; CV of the time to discovery"
    with open("docs/map.svg", "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {height}" role="img" aria-label="What a population brings, by ground">'
                   f'<style>{CSS}</style>{body}<text x="{W / 2}" y="{height - 8}" text-anchor="middle">{foot}</text></svg>\n')


main()
