"""The flags: groups in --help, defaults by prompt format, and what the checks refuse."""
import dataclasses
import re
import shlex
from pathlib import Path

import pytest

import config
from common import UserError

FIELDS = dataclasses.fields(config.Config)
NAMES = [f.name for f in FIELDS]


def resolved(words: str, prompt_format: str = "micro") -> config.Config:
    """Returns what a run is asked for by a command line."""
    return config.resolve_config(config.config_of(config.parse_args(None, shlex.split(words))), prompt_format)


def test_help_shows_every_flag_in_its_group(monkeypatch, capsys):
    """The groups are the comments of Config, in their order, each from its first field to the next group's."""
    body = Path(config.__file__).read_text(encoding="utf-8").split("class Config:")[1]
    assert config.GROUPS == {field: title for title, field in re.findall(r"^    # (.+)\n    (\w+): ", body, re.M)}
    monkeypatch.setenv("COLUMNS", "110")
    with pytest.raises(SystemExit) as end:
        config.parse_args("what train.py does", ["--help"])
    parts = re.split(r"^(\w[\w ]*):\n", capsys.readouterr().out, flags=re.M)[3:]      # without options: -h
    assert end.value.code == 0 and parts[::2] == list(config.GROUPS.values())
    shown = [re.findall(r"^  (--\S+)", text, re.M) for text in parts[1::2]]
    assert f"--matching {{{','.join(config.MATCHING)}}}" in "".join(parts), "legal values are shown"
    assert sum(shown, []) == list(map(config.spelled, NAMES))
    assert set(config.FREE) <= set(NAMES) and not {"seed", "lr", "task_types", "dtype"} & set(config.FREE)


@pytest.mark.parametrize("f", FIELDS, ids=lambda f: f.name)
def test_the_default_shown_is_the_one_in_force(f):
    """Read back from its words, by prompt format or --algo, a default is what a run with that gets."""
    presets = config.ALGORITHMS if f.name in config.ALGORITHMS["grpo"] else config.PRESETS
    shown = dict.fromkeys(presets, config.default_of(f))
    if ": " in config.default_of(f):
        shown = {}
        for part in config.default_of(f).split("; "):
            names, value = part.split(": ")
            shown |= dict.fromkeys(names.split(", "), value)
    for preset in presets:
        real = presets[preset].get(f.name, f.default)
        assert shown[preset] == ("" if real is None or real is False else config.text_of(real)), preset


@pytest.mark.parametrize("prompt_format", config.PRESETS)
def test_presets_leave_nothing_open(prompt_format):
    """And what a run has written down is what it goes on with."""
    cfg = config.resolve_config(config.Config(), prompt_format)
    assert None not in vars(cfg).values() and cfg.prompt_format == prompt_format and cfg.dedupe == "structural"
    assert {name: getattr(cfg, name) for name in config.PRESETS[prompt_format]} == config.PRESETS[prompt_format]
    assert cfg.grace == cfg.evolve_every and config.resolve_config(config.Config(), prompt_format, "bfloat16").dtype == "bfloat16"
    assert config.config_of(config.flags_of(cfg)) == cfg == config.resolve_config(cfg, prompt_format)


@pytest.mark.parametrize("algo", config.ALGORITHMS)
def test_an_algorithm_fills_in_what_is_not_given(algo):
    """Every algorithm sets the same flags, and no two set them alike."""
    preset = config.ALGORITHMS[algo]
    assert set(preset) == set(config.ALGORITHMS["grpo"]) and list(config.ALGORITHMS.values()).count(preset) == 1
    for given in {}, dict(token_weight="row"):
        cfg = vars(config.resolve_config(config.Config(algo=algo, **given), "micro"))
        assert {name: cfg[name] for name in preset} == preset | given


def test_what_other_flags_imply():
    assert (resolved("--single").pop, resolved("--tasks micro").dedupe, resolved("--evolve-every 3").grace) == (2, "off", 3)
    assert resolved("--grace 0 --task-types code_o,code_i").task_types == ("code_o", "code_i")
    cfg = resolved("--lr-decay 12,25,.15 --halt-on collapse,flat --pop 4")
    assert (cfg.lr_decay, cfg.halt_on, cfg.pop) == ((12, 25, 0.15), ("collapse", "flat"), 4)
    assert config.flags_of(cfg)["lr_decay"] == "12,25,0.15" and config.flags_of(cfg)["pop"] == 4


def test_a_misspelt_preset_is_named(monkeypatch):
    monkeypatch.setitem(config.ALGORITHMS, "mine", config.ALGORITHMS["grpo"] | dict(basline="none"))
    with pytest.raises(AssertionError, match="sets 'basline', which is no flag"):
        config.resolve_config(config.Config(algo="mine"), "micro")


@pytest.mark.parametrize("f", [f for f in FIELDS if f.type in (int, float)], ids=lambda f: f.name)
def test_ranges(f):
    low, high = f.metadata["within"]
    for value in low, high:
        config.check_value(f, f.type(value))
    for value in (low - 1, high * 2, float("nan"), float("inf"), "many", None):
        with pytest.raises(UserError, match=rf"^{config.spelled(f.name)} .*: give a number from "):
            config.check_value(f, value)


@pytest.mark.parametrize("words, match", [
    *[(f"--lr-decay {wrong}", "--lr-decay .*: give ") for wrong in ("12,25", "25,12,0.1", "1,2,1.5", "1,2,nan", "a,b,c")],
    ("--steps many", "--steps many: give a number"), ("--pop 5", "--pop 5: give an even number"), ("--seed 1.5", "--seed 1.5: give"),
    ("--matching pfps", "'pfps' is none of pfsp, uniform"), ("--halt-on collapse,colapse", "'colapse' is none of collapse, gaming"),
    ("--task-types code_o,code_x", "'code_x' is none of code_o"),
    ("--algo mine", "'mine' is none of reinforce"), ("--task-types=", "give at least one"),
    ("--tasks micro --task-types code_f", "--tasks micro draws code_o and code_i"),
    ("--prompt-format chat --n-few-shot 0", "--n-few-shot 0: chat prompts show tasks")])
def test_flags_that_cannot_be(words, match):
    with pytest.raises(UserError, match=match):
        resolved(words, "chat" if "chat" in words else "micro")


@pytest.mark.parametrize("switch", config.SWITCHED_OFF)
def test_flags_that_another_one_switches_off(switch):
    """Each is refused if it would change something, and told apart from its usual value."""
    _, names = config.SWITCHED_OFF[switch]
    values = dict(pop=4, matching="uniform", lr_teacher=0.0, lr_spread=2.0, lr_mutate=1.5, evolve="mean", evolve_every=2,
                  replace_frac=0.5, grace=1, teacher_reward="learnability", n_few_shot=1, dedupe="exact")
    words = switch + " micro" * (switch == "--tasks")
    usual = resolved(words)
    for name in names:
        with pytest.raises(UserError, match=f"^{config.spelled(name)} .* does nothing beside {switch}: leave one of the two out"):
            resolved(f"{words} {config.spelled(name)} {values.get(name, '')}")
        if name not in values:                                      # --admit-echo
            continue
        assert resolved(f"{words} {config.spelled(name)} {getattr(usual, name)}") == usual
    assert resolved("--single --evolve none").evolve == "none"


@pytest.mark.parametrize("words, nearest", [("--teacher_reward=band", "--teacher-reward"), ("--lr_teacher 1", "--lr-teacher"),
                                            ("--popul 8", "--pop"), ("--task-type code_o", "--task-types")])
def test_an_unknown_flag_is_answered_by_the_nearest(capsys, words, nearest):
    with pytest.raises(SystemExit) as end:
        config.parse_args(None, words.split())
    assert end.value.code == 2 and f"did you mean {nearest}?" in capsys.readouterr().err
