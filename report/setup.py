"""The part of a report that tells how the run was set up: its flags, which of them differ from the defaults, and the machine."""
import ast
import json
from pathlib import Path

from report.layout import section, table
from report.run import Run, num
from report.svg import brief, text

CONFIG = Path(__file__).resolve().parent.parent / "config.py"


def defaults() -> tuple[dict, dict]:
    """({flag: (default, help)}, {style: presets}) as config.py says; its text is read, it is not run. ... = not a literal."""
    flags, presets = {}, {}
    try:
        body = ast.parse(CONFIG.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return flags, presets
    literal = lambda node: ast.literal_eval(node) if isinstance(node, (ast.Constant, ast.UnaryOp)) else ...
    words = lambda call: {k.arg: literal(k.value) for k in call.keywords}
    for node in body:
        target, value = getattr(node, "targets", [None])[0], getattr(node, "value", None)
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            flags = {f.target.id: tuple(map(literal, f.value.args[:2])) for f in node.body if isinstance(f, ast.AnnAssign)}
        elif getattr(target, "id", "") == "PRESETS":                                        # PRESETS = {"micro": dict(...)}
            presets = {literal(k): words(v) for k, v in zip(value.keys, value.values)}
        elif getattr(getattr(target, "value", None), "id", "") == "PRESETS":      # PRESETS["base"] = PRESETS["chat"] | dict(...)
            presets[literal(target.slice)] = presets[literal(value.left.slice)] | words(value.right)
    return flags, presets


def expected(config: dict) -> dict:
    """What each flag of a configuration would be if nobody had given it; ... where that is not known."""
    flags, presets = defaults()
    style = str(config.get("style"))
    apart = lambda name: sum(config.get(k) != v for k, v in presets[name].items())
    preset = presets[style if style in presets else min(presets, key=apart)] if presets else {}     # auto: the likeliest
    out = {k: preset.get(k, default) if default is None else default for k, (default, _) in flags.items()}
    half = 1 if config.get("single") else (num(config, "pop") or 0) // 2
    settled = dict(style=config.get("style"), teachers=half, students=half, grace=config.get("evolve_every"),
                   duplicate_penalty=config.get("invalid_penalty"))
    return out | {k: v for k, v in settled.items() if k in out} | dict.fromkeys(("name", "out", "resume"), ...)


def setup(run: Run) -> str:
    """Configuration, what differs from train.py's defaults, environment."""
    flags, usual, rows, differing = defaults()[0], expected(run.config), [], []
    said = lambda value: text(value if isinstance(value, str) and value else json.dumps(value), 300)
    for key, value in run.config.items():
        known = usual.get(key, ...) is not ...
        meaning = flags.get(key, ("", "not a flag of this train.py" if flags else ""))[1]
        cells = (f"<code>{text(brief(key, 40))}</code>", said(value), said(usual[key]) if known else "–")
        rows.append("".join(f"<td>{cell}</td>" for cell in cells)
                    + f'<td class="prose">{text("" if meaning is ... else meaning)}</td>')
        differing += rows[-1:] if known and usual[key] != value else []
    head = "".join(f"<th>{word}</th>" for word in ("flag", "value", "default", "meaning"))
    absent = '<p class="absent">Absent: {} could not be read.</p>'
    config = table(head, differing) if differing else ""
    config += f"<details><summary>All {len(rows)} flags</summary>{table(head, rows)}</details>"
    env = [(key, value if isinstance(value, str) else json.dumps(value, indent=1)) for key, value in run.env.items()]
    folded = lambda v: text(v) if len(v) < 200 else f"<details><summary>show</summary><pre>{text(v)}</pre></details>"
    env = [f"<td>{text(brief(k, 40))}</td><td>{folded(v)}</td>" for k, v in env]
    words = (f"{len(differing) or 'None'} of {len(rows)} flags differ from the defaults of this train.py." if flags else
             "No config.py beside report/: its defaults are not known.")
    cards = [config if rows else absent.format("config.json"), table("", env) if env else absent.format("env.json")]
    return section("setup", "Configuration and machine", words, [f'<div class="card wide">{card}</div>' for card in cards])
