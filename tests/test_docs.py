"""The pages say what is true: links lead somewhere, commands are ones that the programs take, names exist.

Nothing here asks that a new file, flag or function be written about; a slow test lists what is left out.
"""
import argparse
import dataclasses
import functools
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import config

ROOT = Path(config.__file__).parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "micro" / "README.md", *(ROOT / "course").glob("*.md")]
MARK = "not tried here"
# What nobody could run where this repository was written: hub ids, a GPU, many cards, the network.
UNTRIED = re.compile(r"\bQwen/|--device cuda(?!.*--plan)|--no-cuda-graphs|--shape 7b|per_node=[3-9]|eval\.fetch(?! --list)")
# Programs of others, which this repository does not install.
FOREIGN = ("vllm", "lm_eval", "evalplus.evaluate", "python -c")
# What a command begins with, after .venv/bin/ is taken off.
PROGRAM = re.compile(r"(?!python -c$)(?:python|torchrun|make|vllm|lm_eval|evalplus\.evaluate|[\w/]+\.py) ")


def relative(path: Path) -> str:
    """A page as pytest shows it."""
    return path.relative_to(ROOT).as_posix()


def pages(test):
    """Run a test once for every page."""
    return pytest.mark.parametrize("page", PAGES, ids=relative)(test)


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def spans(text: str) -> list[str]:
    """What stands in single backticks."""
    return re.findall(r"`([^`\n]+)`", text)


def commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, in fenced blocks and in backticks, each with the line that it stands on."""
    found = []
    for block in re.findall(r"^```(?!python)\w*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        found += [(line, line) for line in block.replace("\\\n", " ").splitlines()]
    for line in prose(page).splitlines():
        found += [(span, line) for span in spans(line) if " " in span]
    stripped = [(command.strip().removeprefix(".venv/bin/"), line) for command, line in found]
    return [(command, line) for command, line in stripped if PROGRAM.match(command)]


ALL = [(page, *found) for page in PAGES for found in commands(page)]
NAMES = [f"{page.stem}: {command[:60]}" for page, command, _ in ALL]


class Parsed(Exception):
    """Raised in place of what a program would do once its command line is understood."""


def understood(monkeypatch, words: list[str], module: str) -> None:
    """Start a program of ours by its path or its module's name; stop it once argparse has taken its words.

    Raises SystemExit where argparse refuses them.
    """
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(self, args=None, namespace=None):
        parse(self, args, namespace)
        raise Parsed

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
    monkeypatch.setattr(sys, "argv", [module, *words])
    with pytest.raises(Parsed):
        if module.endswith(".py"):
            runpy.run_path(str(ROOT / module), run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)


def check_training(words: list[str]) -> None:
    """The flags of train.py are flags, their values legal and in agreement."""
    if words in (["--help"], ["--help-md"]):
        return
    cfg = config.parse_args(None, words)
    prompt_format = cfg.prompt_format
    if prompt_format == "auto":
        prompt_format = "micro" if cfg.base.startswith("micro/") else "chat"
    config.resolve_config(cfg, prompt_format)


def source_of(module: str) -> Path | None:
    """The file that `python -m module` runs; None where no such module of ours is there."""
    path = ROOT / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__main__.py"):
        if candidate.is_file():
            return candidate
    return None


def check_command(monkeypatch, command: str) -> None:
    """A command of ours is understood by the program that it names."""
    words = shlex.split(command.partition(" > ")[0], comments=True)
    if words[0] == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        assert not unknown, f"{command}: the Makefile has no {unknown}"
        return
    if words[0] in ("python", "torchrun"):
        words = words[1:]
    while words[0].startswith("--"):                            # flags of torchrun, written --flag=value
        words = words[1:]
    if words[0] == "-m":
        module, words = words[1], words[2:]
        if module == "pytest":
            return
        path = source_of(module)
        assert path, f"{command}: there is no module {module}"
        assert "parse_args(" in path.read_text(encoding="utf-8"), f"{module} parses its words by other means"
        if "--help" not in words:
            understood(monkeypatch, words, module)
        return
    path, words = words[0], words[1:]
    assert (ROOT / path).is_file(), f"{command}: there is no file {path}"
    if path == "train.py":
        check_training(words)
    elif "--help" not in words:
        understood(monkeypatch, words, path)


def test_the_reading_path_is_counted():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    said, names = re.search(r"engine core, ([\d,]+) lines: (.*?)\.\s", text, re.S).groups()
    counted = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in spans(names))
    assert counted == pytest.approx(int(said.replace(",", "")), rel=0.03) and len(spans(names)) > 5
    said = int(re.search(r"\(nano\.py\), (\d+) lines", text)[1])
    assert said == len((ROOT / "nano.py").read_text(encoding="utf-8").splitlines())


def test_the_readme_is_read_in_two_minutes():
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    assert len(words) <= 750, f"{len(words)} words, code, tables and descriptions of pictures included"


@pytest.mark.parametrize("page", LINKING, ids=relative)
def test_links_lead_somewhere(page):
    """Files are there, and headings where a link names one, as GitHub spells them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        assert path.exists(), f"{relative(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{relative(page)} links to {target}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")           # of runpy: a module was imported already
@pytest.mark.parametrize("page, command, line", ALL, ids=NAMES)
def test_a_command_is_understood_or_marked(page, command, line, monkeypatch):
    """Ours are taken by their own argparse, up to where work would begin; others' carry the mark."""
    if command.startswith(FOREIGN):
        assert MARK in line, f"{relative(page)}: {command}"
    else:
        check_command(monkeypatch, command)


@pytest.mark.parametrize("page, command, line", ALL, ids=NAMES)
def test_what_was_not_tried_says_so(page, command, line):
    assert not UNTRIED.search(command) or MARK in line, f"{relative(page)}: {command}"


def quick() -> list[str]:
    """The commands that end within seconds: help, plans (with the micro base for DIR), self-checks."""
    found = set()
    for _, command, line in ALL:
        command = command.partition("#")[0].strip().removeprefix("python ").replace("DIR", "micro/base")
        if command.endswith(("--help", "--help-md", "--self-check", "--list", "--plan")) and MARK not in line:
            found.add(command)
    return sorted(found)


@pytest.mark.skipif(sys.platform != "linux", reason="the judge is of Linux")
@pytest.mark.slow
@pytest.mark.parametrize("command", quick())
def test_quick_commands_run(command):
    words = [sys.executable, *shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(done.stdout) > 100, done.stderr[-2000:]


@functools.cache
def flags_of(module: str) -> frozenset:
    """Every --flag in the source of a module of ours, of its package and of the package around that."""
    path = source_of(module)
    folders = [path.parent, path.parent.parent] if path.parent != ROOT else []
    files = {path, *(file for folder in folders if folder != ROOT for file in folder.glob("*.py"))}
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    return frozenset(re.findall(r"--[a-z][\w-]*", text))


@pages
def test_flags_exist(page):
    """A flag alone in backticks is one of train.py, or of a program that the same page starts."""
    known = set(re.findall(r"^\| `(--[\w-]+)`", (ROOT / "docs" / "flags.md").read_text(), re.M))
    text = page.read_text(encoding="utf-8")
    for module in set(re.findall(r"python -m ([\w.]+)", text)) | {"verifier"}:
        if source_of(module):
            known |= flags_of(module)
    named = {span.split()[0].partition("=")[0] for span in spans(prose(page)) if span.startswith("--")}
    assert named <= known | {"--help", "--help-md"}, sorted(named - known)


@pages
def test_files_exist(page):
    """Paths of ours in backticks are there; the map of files names those of a folder without it."""
    for span in spans(prose(page)):
        of_a_run = span.startswith(("out/", "step_", "probe/"))
        if re.fullmatch(r"[\w./]+(?:\.(?:py|md|txt)|/)", span) and not of_a_run:
            inside = list(ROOT.glob(f"*/{span}")) if page.name == "files.md" else []
            assert inside or (ROOT / span).exists(), f"{relative(page)}: {span}"


@pages
def test_functions_exist(page):
    """What a dotted name in backticks names is there, where its first part is a module of ours."""
    for span in spans(prose(page)):
        first, *rest = span.split(".")
        ours = (ROOT / first).is_dir() or (ROOT / f"{first}.py").is_file()
        if not ours or not re.fullmatch(r"[a-z_]+(\.\w+)+", span) or rest[-1] in ("py", "json", "jsonl"):
            continue
        thing = importlib.import_module(first)
        for name in rest:
            if not hasattr(thing, name) and hasattr(thing, "__path__"):
                importlib.import_module(f"{thing.__name__}.{name}")
            assert hasattr(thing, name), f"{relative(page)}: {span}"
            thing = getattr(thing, name)


def test_the_shown_task_is_true():
    """The README's task: the program gives what is said, and an attempt is called correct where it is."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown, = re.findall(r"^```text\n(  step .*?)^```$", text, re.M | re.S)
    program = re.search(r"^    def f.*?return x$", shown, re.M | re.S)[0]
    space = {}
    exec(re.sub(r"^    ", "", program, flags=re.M), space)
    given, gold = re.search(r"^    (\S+) -> (\S+)$", shown, re.M).groups()
    assert space["f"](eval(given)) == eval(gold)
    attempts = re.findall(r"^    S\d+ (correct|wrong)(?: x(\d))?  .*=(\S+)$", shown, re.M)
    assert all((eval(answer) == eval(gold)) == (verdict == "correct") for verdict, _, answer in attempts)
    verdicts = [verdict for verdict, n, _ in attempts for _ in range(int(n or 1))]
    rate = float(re.search(r"solved (\S+),", shown)[1])
    assert len(verdicts) == 4 and verdicts.count("correct") / 4 == rate


def test_pictures_are_drawings_without_scripts():
    for path in (ROOT / "docs").glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert "prefers-color-scheme:dark" in text and path.stat().st_size < 60_000
        tags = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(text).iter()}
        assert not tags & {"script", "foreignObject", "image"}
        assert "@import" not in text and "url(http" not in text


def legal(name: str, listed: list[str]) -> bool:
    """Whether a page lists a flag's values as they are, the default first."""
    field = {f.name: f for f in dataclasses.fields(config.Config)}[name]
    choices = field.metadata["choices"]
    default = config.ALGORITHMS[config.Config.algo].get(name, field.default)
    by_format = {preset.get(name, default) for preset in config.PRESETS.values()}
    if len(by_format) == 1:
        default, = by_format
    if choices:
        return listed[0] == default and set(listed) <= set(choices)
    if field.type is bool:
        return listed == ["on" if default else "off"]
    if default is None:
        return (listed[0] == "by format") == (name in config.PRESETS["chat"])
    return float(listed[0]) == default


def test_switches_of_the_literature_are_those_of_the_configuration():
    """Every flag of its tables exists, and the values beside it are legal, default first."""
    text = (ROOT / "docs" / "advanced" / "literature.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`--[^|]*) \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    assert len(rows) == len(re.findall(r"^\| `--", text, re.M)) >= 15
    for flags, values, found in rows:
        names = [flag.replace("-", "_") for flag in re.findall(r"`--([\w-]+)`", flags)]
        parts = re.sub(r"\(.*?\)", "", values).split(";")       # what stands in brackets explains
        assert len(names) == len(parts) and found.strip(), flags
        for name, part in zip(names, parts):
            assert legal(name, [value.strip(" *") for value in part.split(",")]), f"--{name}: {part}"


def test_prompt_formats_are_the_presets():
    """The table of own-base.md: steps, rank, rates, attempts and tokens by format."""
    text = (ROOT / "docs" / "own-base.md").read_text(encoding="utf-8")
    pattern = r"^\| `(\w+)` \| [^|]* \| (\d+) \| (\d+) \| ([^|]*) \| (\d+) \| ([\d,]+) \|$"
    rows = re.findall(pattern, text, re.M)
    assert {name for name, *_ in rows} <= set(config.PRESETS) and len(rows) >= 4
    for name, steps, rank, rates, attempts, tokens in rows:
        preset = config.PRESETS[name]
        said = [int(word.replace(",", "")) for word in (steps, rank, attempts, tokens)]
        assert said == [preset[key] for key in ("steps", "rank", "samples_per_task", "max_new_tokens")], name
        lr, *teachers = re.findall(r"[\de.-]+\d", rates)
        assert float(lr) == preset["lr"] and float((teachers or [lr])[0]) == preset["lr_teacher"], name


@pages
def test_python_is_python(page):
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S):
        compile(block, relative(page), "exec")


def test_papers_are_linked_under_their_own_number():
    links = []
    for page in PAGES:
        links += re.findall(r"\[(\d{4}\.\d{5})\]\((.*?)\)", page.read_text(encoding="utf-8"))
    assert len(links) > 20 and all(url == f"https://arxiv.org/abs/{number}" for number, url in links)


@pytest.mark.slow
def test_what_the_pages_leave_out(capsys):
    """No demand: prints the switches of named values and the files at the root that no page names."""
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES if page.name != "flags.md")
    switches = [f.name for f in dataclasses.fields(config.Config) if f.metadata["choices"]]
    silent = [config.spelled(name) for name in switches if f"`{config.spelled(name)}`" not in text]
    files = [path.name for path in sorted(ROOT.glob("*.py")) if f"`{path.name}`" not in text]
    with capsys.disabled():
        print(f"\nnot in the pages: {', '.join(silent + files) or 'nothing'}")
