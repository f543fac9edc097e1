"""The pages say what is true: links lead somewhere, commands are understood, names exist, and no page grows too long.

Nothing here asks that a new file, flag or function be written about.
"""
import argparse
import re
import runpy
import shlex
import sys

import pytest
from tiny_run import ROOT

import config
from eval import ablate

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [path.relative_to(ROOT) for folder in ("", "docs", "course", "micro") for path in sorted((ROOT / folder).glob("*.md"))]
TEXTS = {page.as_posix(): (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
WORDS = {"README.md": 750, "LOG.md": 1200, "docs/findings.md": 2500, "docs/own-base.md": 900, "docs/evaluation.md": 700,
         "docs/engine.md": 600, "docs/verifier.md": 700, "docs/runs.md": 700, "docs/troubleshooting.md": 500, "docs/literature.md": 400, "docs/change-it.md": 1500}
every_page = pytest.mark.parametrize("page", TEXTS)
# Lines that this tree does not run: nobody could try it here, the program is somebody else's, or an old commit's.
EXEMPT = re.compile(r"# (not tried here|tried with \w+ \d+\.\d+\.\d+|at (8b06857|db906a74))")
UNTRIED = re.compile(r"\bQwen/|--device cuda(?!.*--plan)|--shape 7b|per_node=[3-9]|^(vllm|lm_eval|evalplus)")
PROGRAM = re.compile(r"(python|torchrun|make|vllm|lm_eval|evalplus\.\w+) ")
FOREIGN = {("-m", "pytest"), ("-m", "pip"), ("-m", "venv"), ("-c",)}
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
FLAG = re.compile(r"--[a-z][\w-]*")
parse = argparse.ArgumentParser.parse_known_args


def spans(page: str) -> list[str]:
    """What stands in single backticks, outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", TEXTS[page]))


def commands(page: str) -> list[str]:
    """The commands of a page with their remarks, in fenced blocks and in backticks; && and loops are taken apart."""
    lines = [span for span in spans(page) if "..." not in span]
    for language, block in FENCED.findall(TEXTS[page]):
        lines += block.splitlines() * (language != "python")
    parts = [part.strip().removeprefix(".venv/bin/") for line in lines for part in re.split(r" && |; do |; done", line)]
    return [part for part in parts if PROGRAM.match(part)]


def parse_and_stop(self, args=None, namespace=None):
    """In place of argparse's: what a program would do with its words does not begin."""
    _, unknown = parse(self, args, namespace)
    assert not unknown
    raise StopIteration


def try_command(command: str, monkeypatch) -> None:
    """Raises unless the program of a command takes its words; train.py's values are legal, too, and agree."""
    assert EXEMPT.search(command) or not UNTRIED.search(command), "nobody has tried it, and it does not say so"
    program, *words = shlex.split(re.sub(r"\$\w+", "1", command), comments=True)
    words = [word for word in words if not re.match(r"--(standalone|local-addr|nproc_per_node)", word)]
    if EXEMPT.search(command) or "--help" in words:
        return
    if tuple(words[:2]) in FOREIGN or tuple(words[:1]) in FOREIGN:
        assert all((ROOT / word).exists() for word in words if word.endswith(".py"))
        return
    if program == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in words if "=" not in word} <= set(targets)
    elif words[0] == "train.py":
        cfg = config.config_of(config.parse_args(None, words[1:]))
        of_others = "chat" if cfg.prompt_format == "auto" else cfg.prompt_format
        config.resolve_config(cfg, "micro" if cfg.base.startswith("micro/") else of_others)
    else:
        as_module = words[0] == "-m"
        if words[:2] == ["-m", "eval.ablate"]:                   # its arms are flags of train.py, but not every one
            at = words.index("--") if "--" in words else len(words)
            args = ablate.parser().parse_args(words[2:at])
            args.train = words[at + 1:]
            ablate.settled(args, ablate.arms_of(args))
        monkeypatch.setattr(sys, "argv", words[as_module:])
        with monkeypatch.context() as patched, pytest.raises(StopIteration):
            patched.setattr(argparse.ArgumentParser, "parse_known_args", parse_and_stop)
            run = runpy.run_module if as_module else runpy.run_path
            run(words[1] if as_module else str(ROOT / words[0]), run_name="__main__")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")           # of runpy: a module was imported already
@every_page
def test_commands_are_understood(page, monkeypatch, capsys):
    wrong = []
    monkeypatch.chdir(ROOT)
    for command in commands(page):
        try:
            try_command(command, monkeypatch)
        except (Exception, SystemExit) as error:
            wrong.append(f"{command}: {error!r} {capsys.readouterr().err[-200:]}")
    assert not wrong, "\n".join(wrong)


@every_page
def test_links_lead_somewhere(page):
    """Files are there, and headings as GitHub spells them; a paper stands under its own number."""
    for target in re.findall(r"\]\(([^)\s]+)\)", TEXTS[page]):
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert re.match(r"\w+:", target) or path.exists(), target
        if anchor and path.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings], target
    for number, url in re.findall(r"\[(\d{4}\.\d{5})\]\((.*?)\)", TEXTS[page]):
        assert url == f"https://arxiv.org/abs/{number}"


@every_page
def test_flags_and_files_exist(page):
    """A flag in backticks stands in the source of a program, or in a command of somebody else's; a path of ours is there."""
    known = {config.spelled(name) for name in vars(config.Config())} | {"--help", "--local-addr", "--shutdown-timeout"}
    for text in [path.read_text(encoding="utf-8") for path in (*ROOT.glob("*.py"), *ROOT.glob("[a-z]*/*.py"))] + commands(page):
        known |= set(FLAG.findall(text))
    if page != "LOG.md":                        # it keeps the flags of its day
        assert {FLAG.match(span)[0] for span in spans(page) if FLAG.match(span)} <= known
    for span in spans(page):
        if re.fullmatch(r"[\w./]+(?:\.(?:py|md|txt)|/)", span) and not span.startswith(("out/", "step_", "probe/")):
            assert (ROOT / span).exists() or (ROOT / page).parent.joinpath(span).exists(), span


def test_lengths():
    """Words of pages, counted as wc does."""
    lengths = {page: len(text.split()) for page, text in TEXTS.items()}
    assert not {page: (lengths[page], most) for page, most in WORDS.items() if lengths[page] > most}
    assert sum(lengths.values()) <= 16_000


def test_the_map_of_files_is_true():
    block, = re.findall(r"^```text\n(train\.py .*?)^```$", README, re.M | re.S)
    assert all((ROOT / name).exists() for line in block.splitlines() for name in line[:30].split())
    stated = int(re.search(r"algorithm in (\d+) lines", README)[1])
    assert abs(stated - len((ROOT / "nano.py").read_text(encoding="utf-8").splitlines())) <= 10


def test_the_shown_task_is_true():
    """README's task: the program gives the output beside its input, and an attempt is called correct where it is."""
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
