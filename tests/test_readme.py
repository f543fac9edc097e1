"""The README: its commands are ones that train.py takes, its examples run, what its table says of files is so."""
import dataclasses
import re
import shlex
from pathlib import Path

import pytest
import torch

import config
import operators
import rewards

ROOT = Path(config.__file__).parent
TEXT = (ROOT / "README.md").read_text()


def commands() -> list[str]:
    found = re.findall(r"(?:^|[` ])train\.py (--[^`#\n]*)", TEXT, re.M)
    assert len(found) >= 10
    return [re.sub(r" on the .*", "", re.sub(r"\bS$", "0", words.strip().rstrip(",:"))) for words in found]


@pytest.mark.parametrize("words", commands())
def test_commands_are_real(words):
    if words not in ("--help",):
        config.settle(config.parse_args(None, shlex.split(words.replace("...", "DIR"))), "chat")


def test_examples_run():
    """Each block of code, in the module that it belongs to; that of a domain is put through its paces in test_domains.py."""
    section = TEXT.split("## Change it")[1].split("\n## ")[0]
    third, sign_flip, domain = re.findall(r"^```python\n(.*?)^```", section, re.M | re.S)
    assert domain.startswith("# tasks/prompts.py\n")
    space = vars(rewards) | dict(TEACHER_REWARDS=dict(rewards.TEACHER_REWARDS))       # its table stays as it is
    exec(third, space)
    third = space["TEACHER_REWARDS"]["third"]
    assert third(1 / 3, 0.0, 0.1) == 1 and third(0.0, 0.0, 0.1) == 0 and "third" not in rewards.TEACHER_REWARDS
    space = dict(vars(operators))
    exec(sign_flip, space)
    parent = {"model.layers.0.mlp.up_proj": (torch.randn(4, 32), torch.randn(48, 4))}
    (A, B), = space["sign_flip"]([parent], torch.Generator().manual_seed(0), share=.5).values()
    (old_A, old_B), = parent.values()
    assert torch.equal(A.abs(), old_A.abs()) and 0.3 < (A != old_A).float().mean() < 0.7 and torch.equal(B, old_B)


def test_the_table_of_files_is_true():
    """The files that it names are there and about as long as it says; yours need not be in it."""
    counts = {name: int(n) for name, n in re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", TEXT, re.M)}
    assert len(counts) >= 10 and {"nano.py", "train.py", "rl.py"} <= set(counts)
    real = {name: len((ROOT / name).read_text().splitlines()) for name in counts}
    wrong = {name: (n, real[name]) for name, n in counts.items() if abs(n - real[name]) > 20}     # a comment of yours is welcome
    assert not wrong, f"lines in the README and in the file: {wrong}"


def test_switches_are_those_of_the_configuration():
    """Every flag of the table exists, its values are the legal ones, default first, and no switch of named values is left out."""
    fields, said = {f.name: f for f in dataclasses.fields(config.Config)}, set()
    section = TEXT.split("## Switches for ablations")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`--[^|]*) \| ([^|]*) \| ([^|]*) \|$", section, re.M)
    assert len(rows) == len(re.findall(r"^\| `--", section, re.M)) >= 15
    for flags, values, found in rows:
        names = [flag.replace("-", "_") for flag in re.findall(r"`--([\w-]+)`", flags)]
        parts = re.sub(r"\(.*?\)", "", values).split(";")  # what stands in brackets explains
        assert len(names) == len(parts) and found.strip(), flags
        for name, part in zip(names, parts):
            f, listed = fields[name], [v.strip(" *") for v in part.split(",")]
            choices = f.metadata["choices"]
            if choices:
                assert listed[0] == f.default and sorted(listed) == sorted(choices), name
            elif f.metadata["kind"] is bool:
                assert listed == ["on" if f.default else "off"], name
            elif f.default is None:
                assert (listed[0] == "by style") == (name in config.PRESETS["chat"]), name
            else:
                assert float(listed[0]) == f.default, name
        said |= set(names)
    assert said >= {name for name, f in fields.items() if f.metadata["choices"]} - {"style", "dtype"}


def test_papers_are_linked_under_their_own_number():
    links = re.findall(r"\[(\d{4}\.\d{5})\]\((.*?)\)", TEXT)
    assert len(links) > 20 and all(url == f"https://arxiv.org/abs/{number}" for number, url in links)
