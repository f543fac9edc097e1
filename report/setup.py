"""The part of a report that tells how the run was set up: its flags, which of them differ from the defaults, and
the machine."""
import json
from pathlib import Path

from report.layout import section, table
from report.run import RunLog, num
from report.svg import brief, text

FLAGS = Path(__file__).resolve().parent.parent / "docs" / "flags.md"
UNKNOWN = ("name", "out", "resume")     # what nobody gave is no news here


def defaults(style: str) -> dict[str, tuple[str, str]]:
    """{flag: (default of this style, meaning)} as the tables of docs/flags.md say; {} where it is not there."""
    flags = {}
    for line in FLAGS.read_text(encoding="utf-8").splitlines() if FLAGS.is_file() else ():
        if line.startswith("| `--"):
            name, _, default, meaning = line.strip("| ").split(" | ", 3)
            for part in default.split("; "):                    # micro: 80; chat, base, direct: 200
                styles, colon, value = part.partition(": ")
                default = value if colon and style in styles.split(", ") else default
            flags[name.strip("`-").replace("-", "_")] = (default, meaning)
    return flags


def expected(config: dict) -> dict[str, str]:
    """What each flag of a configuration would be if nobody had given it, as docs/flags.md writes it."""
    usual = {name: default for name, (default, _) in defaults(str(config.get("style"))).items()}
    half = 1 if config.get("single") else int(num(config, "pop") or 0) // 2
    settled = dict(style=config.get("style"), teachers=half, students=half, grace=config.get("evolve_every"),
                   duplicate_penalty=config.get("invalid_penalty"))
    usual |= {name: str(value) for name, value in settled.items() if name in usual}
    return {name: default for name, default in usual.items() if name not in UNKNOWN}


def differs(value, default: str) -> bool:
    """Whether a value is another one than docs/flags.md writes so; it writes nothing for False and None."""
    return default != ("" if value is None or value is False else str(value))


def setup(run: RunLog) -> str:
    """Configuration, what differs from train.py's defaults, environment."""
    flags, usual = defaults(""), expected(run.config)
    rows, differing = [], []
    for key, value in run.config.items():
        said = text(value if isinstance(value, str) and value else json.dumps(value), 300)
        other = key in usual and differs(value, usual[key])
        default = text(usual[key] or "none") if other else said if key in usual else "–"
        meaning = flags[key][1] if key in flags else "not a flag of this train.py" if flags else ""
        row = f"<td><code>{text(brief(key, 40))}</code></td><td>{said}</td><td>{default}</td>"
        rows.append(f'{row}<td class="prose">{text(meaning)}</td>')
        differing += rows[-1:] if other else []
    head = ("flag", "value", "default", "meaning")
    cards = ['<p class="absent">Absent: config.json could not be read.</p>',
             '<p class="absent">Absent: env.json could not be read.</p>']
    if rows:
        folded = f"<details><summary>All {len(rows)} flags</summary>{table(head, rows)}</details>"
        cards[0] = (table(head, differing) if differing else "") + folded
    env = []
    for key, value in run.env.items():
        said = text(value if isinstance(value, str) else json.dumps(value, indent=1))
        said = said if len(said) < 200 else f"<details><summary>show</summary><pre>{said}</pre></details>"
        env.append(f"<td>{text(brief(key, 40))}</td><td>{said}</td>")
    if env:
        cards[1] = table((), env)
    words = "No docs/flags.md beside report/: the defaults are not known."
    if flags:
        words = f"{len(differing) or 'None'} of {len(rows)} flags differ from the defaults of this train.py."
    return section("setup", "Configuration and machine", words, [f'<div class="card wide">{c}</div>' for c in cards])
