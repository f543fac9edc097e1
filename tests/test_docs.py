"""The pages say what is true: links lead somewhere, commands are ones that the programs take, names exist.

Nothing here asks that a new file, flag or function be written about.
"""
import argparse
import dataclasses
import pkgutil
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import config

ROOT = Path(config.__file__).parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKING = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "micro" / "README.md", *(ROOT / "course").glob("*.md")]
MARK = "not tried here"
TRIED = re.compile(r"# tried with \w+ \d+\.\d+\.\d+")         # of a program of others: its name and version
# What nobody could run where this repository was written: hub ids, a GPU, many cards, the network.
UNTRIED = re.compile(r"\bQwen/|--device cuda(?!.*--plan)|--shape 7b|per_node=[3-9]")
# Programs of others, which this repository does not install.
FOREIGN = ("vllm", "lm_eval", "evalplus.", "python -c")
# What a command begins with, after .venv/bin/ is taken off.
PROGRAM = re.compile(r"(?!python -c$)(?:python|torchrun|make|vllm|lm_eval|evalplus\.\w+|[\w/]+\.py) ")


def relative(path: Path) -> str:
    """A page as pytest shows it."""
    return path.relative_to(ROOT).as_posix()


pages = pytest.mark.parametrize("page", PAGES, ids=relative)


def spans(text: str) -> list[str]:
    """What stands in single backticks, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))


def commands(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, in fenced blocks and in backticks, each with the line that it stands on."""
    text, found = page.read_text(encoding="utf-8"), []
    for block in re.findall(r"^```(?!python)\w*\n(.*?)^```$", text, re.M | re.S):
        found += [(line, line) for line in block.replace("\\\n", " ").splitlines()]
    for line in re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S).splitlines():
        found += [(span, line) for span in spans(line) if " " in span]
    stripped = [(command.strip().removeprefix(".venv/bin/"), line) for command, line in found]
    return [(command, line) for command, line in stripped if PROGRAM.match(command)]


ALL = [(page, *found) for page in PAGES for found in commands(page)]
every_command = pytest.mark.parametrize("page, command, line", ALL, ids=[f"{page.stem}: {command[:60]}" for page, command, _ in ALL])


class Parsed(Exception):
    """Raised in place of what a program would do once its command line is understood."""


def understood(monkeypatch, words: list[str], module: str) -> None:
    """Start a program of ours by its path or its module's name, up to where argparse has taken its words."""
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


def source_of(module: str) -> Path | None:
    """The file that `python -m module` runs; None where no such module of ours is there."""
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()), None)


def check_command(monkeypatch, command: str) -> None:
    """A command of ours is understood by the program that it names."""
    words = shlex.split(command.partition(" > ")[0], comments=True)
    if words[0] == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
        unknown = [word for word in words[1:] if "=" not in word and word not in targets]
        assert not unknown, f"{command}: the Makefile has no {unknown}"
        return
    words = words[words[0] in ("python", "torchrun"):]
    while words[0].startswith("--"):                            # flags of torchrun, written --flag=value
        words = words[1:]
    if words[:2] == ["-m", "pytest"]:
        return
    program, words = (words[1], words[2:]) if words[0] == "-m" else (words[0], words[1:])
    path = ROOT / program if program.endswith(".py") else source_of(program)
    assert path and path.is_file(), f"{command}: there is no {program}"
    if "--help" not in words and program == "train.py":         # its values are legal and agree
        cfg = config.parse_args(None, words)
        micro = cfg.prompt_format == "auto" and cfg.base.startswith("micro/")
        config.resolve_config(cfg, "micro" if micro else cfg.prompt_format.replace("auto", "chat"))
    elif "--help" not in words:
        understood(monkeypatch, words, program)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")           # of runpy: a module was imported already
@every_command
def test_a_command_is_understood_or_marked(page, command, line, monkeypatch):
    """Ours are taken by their own argparse, up to where work would begin; others' carry the mark or the version that they were tried with."""
    foreign = command.startswith(FOREIGN)
    assert MARK in line or foreign and TRIED.search(line) or not (foreign or UNTRIED.search(command)), f"{relative(page)}: {command}"
    if not command.startswith(FOREIGN):
        check_command(monkeypatch, command)


@pytest.mark.parametrize("page", LINKING, ids=relative)
def test_links_lead_somewhere(page):
    """Files are there, and headings where a link names one, as GitHub spells them; a paper stands under its own number."""
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name) if name else page
        assert path.exists(), f"{relative(page)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{relative(page)} links to {target}"
    for number, url in re.findall(r"\[(\d{4}\.\d{5})\]\((.*?)\)", text):
        assert url == f"https://arxiv.org/abs/{number}"


@pages
def test_flags_exist(page):
    """A flag alone in backticks is one of train.py, or is in the source of a program that the same page starts."""
    text = page.read_text(encoding="utf-8")
    known = {config.spelled(f.name) for f in dataclasses.fields(config.Config)} | {"--help", "--local-addr"}
    for path in filter(None, map(source_of, {*re.findall(r"python -m ([\w.]+)", text), "verifier"})):
        for file in {path, *(path.parent.glob("*.py") if path.parent != ROOT else ())}:
            known |= {*re.findall(r"--[a-z][\w-]*", file.read_text(encoding="utf-8"))}
    named = {span.split()[0].partition("=")[0] for span in spans(text) if span.startswith("--")}
    assert named <= known, sorted(named - known)


@pages
def test_files_and_functions_exist(page):
    """What a path of ours or a dotted name names is there; the map of files names those of a folder without it."""
    for span in spans(page.read_text(encoding="utf-8")):
        if re.fullmatch(r"[\w./]+(?:\.(?:py|md|txt)|/)", span):
            of_a_folder = page.name == "files.md" and list(ROOT.glob(f"*/{span}"))
            of_a_run = span.startswith(("out/", "step_", "probe/"))
            assert of_a_folder or of_a_run or (ROOT / span).exists(), f"{relative(page)}: {span}"
            continue
        first = span.partition(".")[0]
        ours = source_of(first) or (ROOT / first / "__init__.py").is_file()
        if ours and re.fullmatch(r"[a-z_]+(\.\w+)+", span) and not span.endswith((".json", ".jsonl")):
            pkgutil.resolve_name(span)                  # raises where it is not there


def test_the_reading_path_is_counted():
    stated, names = re.search(r"engine core, ([\d,]+) lines: (.*?)\.\s", README, re.S).groups()
    counted = sum(len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in spans(names))
    assert counted == pytest.approx(int(stated.replace(",", "")), rel=0.1) and len(spans(names)) > 5
    stated = int(re.search(r"\(nano\.py\), (\d+) lines", README)[1])
    assert stated == len((ROOT / "nano.py").read_text(encoding="utf-8").splitlines())


def test_the_shown_task_is_true():
    """The README's task: the program gives the output beside its input, and an attempt is called correct where it is."""
    shown, = re.findall(r"^```text\n(  step .*?)^```$", README, re.M | re.S)
    space = {}
    exec(re.sub("^    ", "", re.search(r"^    def f.*?return x$", shown, re.M | re.S)[0], flags=re.M), space)
    given, gold = re.search(r"^    (\S+) -> (\S+)$", shown, re.M).groups()
    assert space["f"](eval(given)) == eval(gold)
    verdicts = []
    for verdict, n, answer in re.findall(r"^    S\d+ (correct|wrong)(?: x(\d))?  .*=(\S+)$", shown, re.M):
        assert (eval(answer) == eval(gold)) == (verdict == "correct")
        verdicts += int(n or 1) * [verdict]
    assert len(verdicts) == 4 and verdicts.count("correct") / 4 == float(re.search(r"solved (\S+),", shown)[1])
