"""The part of a report that tells how the run was set up: flags, defaults, machine."""
import json
from pathlib import Path

from report.layout import section, table
from report.run import RunLog, num
from report.svg import brief, text

FLAGS = Path(__file__).resolve().parent.parent / "docs" / "flags.md"
APART = ("name", "out", "resume")       # flags that differ between any two runs


def written(value) -> str:
    """A value as docs/flags.md writes it: nothing stands for False and None."""
    return "" if value is None or value is False else str(value)


def defaults(config: dict) -> dict[str, tuple[str, str]]:
    """{flag: (its value had nobody given it, meaning)} as docs/flags.md writes these; {} without that."""
    half = int(num(config, "pop") or 0) // 2
    prompt_format = config.get("prompt_format")
    settled = dict(prompt_format=prompt_format, teachers=half,
                   grace=config.get("evolve_every"),
                   importance_cap=0.0 if config.get("dtype") in ("auto", "float32") else 2.0)
    flags = {}
    for line in FLAGS.read_text(encoding="utf-8").splitlines() if FLAGS.is_file() else ():
        if line.startswith("| `--"):
            name, _, default, meaning = line.strip("| ").split(" | ", 3)
            name = name.strip("`-").replace("-", "_")
            for part in default.split("; "):        # micro: 80; chat, base: 200, or by --algo in their place
                names, colon, value = part.partition(": ")
                if colon and any(name in (prompt_format, config.get("algo")) for name in names.split(", ")):
                    default = value
            flags[name] = (written(settled.get(name, default)), meaning)
    return flags


def setup(run: RunLog) -> str:
    """Configuration, what differs from train.py's defaults, environment."""
    flags, rows, differing, env = defaults(run.config), [], [], []
    for key, value in run.config.items():
        said = text(value if isinstance(value, str) and value else json.dumps(value), 300)
        default, meaning = flags.get(key, ("", "not a flag of this train.py" if flags else ""))
        usual = said if default == written(value) else text(default or ("false" if value is True else "none"))
        if key not in flags or key in APART:
            usual = "–"
        cells = [f"<code>{text(brief(key, 40))}</code>", said, usual]
        rows.append("".join(f"<td>{cell}</td>" for cell in cells) + f'<td class="prose">{text(meaning)}</td>')
        differing += rows[-1:] if usual not in ("–", said) else []
    for key, value in run.env.items():
        said = text(value if isinstance(value, str) else json.dumps(value, indent=1))
        said = said if len(said) < 200 else f"<details><summary>show</summary><pre>{said}</pre></details>"
        env.append(f"<td>{text(brief(key, 40))}</td><td>{said}</td>")
    cards = ['<p class="absent">Absent: config.json could not be read.</p>',
             table((), env) if env else '<p class="absent">Absent: env.json could not be read.</p>']
    if rows:
        head = ("flag", "value", "default", "meaning")
        cards[0] = table(head, differing) if differing else ""
        cards[0] += f"<details><summary>All {len(rows)} flags</summary>{table(head, rows)}</details>"
    words = "No docs/flags.md beside report/: the defaults are not known."
    if flags:
        words = f"{len(differing) or 'None'} of {len(rows)} flags differ from the defaults of this train.py."
    return section("setup", "Configuration and machine",
                   words, [f'<div class="card wide">{c}</div>' for c in cards])
