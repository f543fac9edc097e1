"""The flags: groups in --help, defaults by prompt format, and what the checks refuse."""
import dataclasses
import re
from pathlib import Path

import pytest

import config
from common import UserError

NAMES = [f.name for f in dataclasses.fields(config.Config)]


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
    assert [flags[0] for flags in shown] == list(map(config.spelled, config.GROUPS))
    assert sum(shown, []) == list(map(config.spelled, NAMES))
    assert config.FREE == tuple("base name out resume init steps device plan show save_every keep halt_on".split())    # change no result


@pytest.mark.parametrize("f", dataclasses.fields(config.Config), ids=lambda f: f.name)
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
def test_presets_pass_the_checks_and_leave_nothing_open(prompt_format):
    cfg = config.resolve_config(config.Config(), prompt_format)
    assert None not in vars(cfg).values() and cfg.prompt_format == prompt_format
    assert {name: getattr(cfg, name) for name in config.PRESETS[prompt_format]} == config.PRESETS[prompt_format]
    assert (cfg.pop, cfg.teachers, cfg.grace, cfg.importance_cap) == (8, 4, cfg.evolve_every, 0)
    assert config.resolve_config(config.Config(), prompt_format, "cuda").importance_cap == 2


@pytest.mark.parametrize("slip, said", [
    (dict(basline="none"), "sets 'basline', which is no flag whose default is None: did you mean 'baseline'"),
    (dict(normalise_advantages="off"), ".*: did you mean 'normalize_advantages'"),
    (dict(epochs=2), "sets 'epochs', which is no flag whose default is None")])
def test_a_preset_sets_flags_that_it_can_set(slip, said):
    """A misspelt one would be an AttributeError that names no table, and a flag with a default of its own would be left as it is."""
    tables = config.ALGORITHMS, config.PRESETS
    for name, table in zip(("ALGORITHMS", "PRESETS"), tables):
        config.check_presets(name, table)
        last = list(table)[-1]
        with pytest.raises(AssertionError, match=rf"^{name}\['mine'\] of config.py {said}"):
            config.check_presets(name, table | dict(mine=table[last] | slip))
        with pytest.raises(AssertionError, match=rf"{name}\['mine'\] of config.py does not set "):
            config.check_presets(name, table | dict(mine={}))


@pytest.mark.parametrize("algo", config.ALGORITHMS)
def test_an_algorithm_fills_in_what_is_not_given(algo):
    """Every algorithm sets the same five flags, to legal values, and no two set them alike."""
    preset = config.ALGORITHMS[algo]
    assert len(preset) == 5 and set(preset) == set(config.ALGORITHMS["grpo"])
    assert list(config.ALGORITHMS.values()).count(preset) == 1
    for given in {}, dict(token_weight="row", clip=(0.1, 0.5)):
        cfg = vars(config.resolve_config(config.Config(algo=algo, **given), "micro"))
        assert {name: cfg[name] for name in preset} == preset | given


@pytest.mark.parametrize("f", [f for f in dataclasses.fields(config.Config) if f.metadata["within"]], ids=lambda f: f.name)
def test_ranges(f):
    low, high = map(f.type, f.metadata["within"])
    for value in low, high:
        config.check_value(f, value)
    for value in (low - 1, high * 2, f.type(1e30), *map(float, ("nan", "inf", "-inf"))):
        if type(value) is f.type:
            with pytest.raises(UserError, match=rf"^{config.spelled(f.name)} .*: give a number in .*\d"):
                config.check_value(f, value)


@pytest.mark.parametrize("change, match", [
    (dict(steps="many"), "--steps 'many': give a value of type int"), (dict(single=1), "--single 1: give"),
    (dict(rank=None), "--rank None: give"), (dict(matching="best"), "--matching 'best': give one of pfsp, "),
    (dict(lr=float("nan")), "--lr nan: give a number in"), (dict(pop=[]), r"--pop \[\]: give")])
def test_a_damaged_config_of_a_run(change, match):
    cfg = config.resolve_config(config.Config(), "micro")
    saved = config.flags_of(cfg)
    assert config.config_of_run(saved, "out/x") == cfg
    with pytest.raises(UserError, match=rf"config.json of out/x is damaged \({match}"):
        config.config_of_run(saved | change, "out/x")


def test_flags_with_several_values_are_tuples_and_text_on_the_disk():
    """Parsed once: what runs sees tuples. config.json holds what the command line holds, as older runs wrote it."""
    cfg = config.resolve_config(config.parse_args(None, ["--lr-decay", "12,25,.15", "--halt-on", "escape,flat"]), "chat")
    assert (cfg.lr_decay, cfg.halt_on, cfg.clip) == ((12, 25, 0.15), ("escape", "flat"), (0.2, 0.2))
    assert cfg.task_types == ("code_o", "code_i", "code_f") and config.Config().halt_on == ()
    flags = config.flags_of(cfg)
    assert (flags["lr_decay"], flags["clip"], flags["task_types"]) == ("12,25,0.15", "0.2,0.2", "code_o,code_i,code_f")
    assert config.config_of(flags) == cfg == config.config_of_run(flags | dict(lr_decay="12,25,.15"), "out/x")
    with pytest.raises(UserError, match="--task-types 'code_o': give a tuple"):
        config.resolve_config(config.Config(task_types="code_o"), "micro")


NICHES = dict(niches=True, task_types="code_o,code_i")


@pytest.mark.parametrize("flags, match", [
    *[(dict(lr_decay=wrong), "--lr-decay .*HOLD") for wrong in ("12,25", "25,12,0.1", "1,2,1.5", "1,2,nan", "a,b,c", "-1,2,0.1")],
    (NICHES | dict(task_types="code_o"), "give at least two types"), (NICHES | dict(pop=2), "of each role at least as many members"),
    (dict(lr_spread=0.5), "--lr-spread 0.5"), (dict(lr_mutate=0.9), "--lr-mutate 0.9"),
    (dict(lr_spread=float("inf")), "--lr-spread inf"), (dict(lr_mutate=float("nan")), "--lr-mutate nan"),
    (dict(litter=4, evolve="none"), "--litter 4: this run replaces no student: leave --litter out, or"),
    (dict(litter=2, single=True), "--litter 2: this run replaces no student"), (dict(litter=2, pop=2), "at least two students"),
    (dict(litter=4, evolve="copy"), "--litter 4: of 3 student.* copy makes 3 different.*: give at most 3"),
    (dict(litter=2, evolve="mean", pop=6), "mean makes 1 different"), (dict(litter=0), "--litter 0"),
    (dict(pop="8"), "--pop '8': give a value of type int"), (dict(algo="mine"), "--algo 'mine': give one of reinforce"),
    (dict(single=True, pop=4), "--single is one adapter in both roles"), (dict(clip="0.2"), "--clip 0.2: give LOW,HIGH"),
    (dict(pop=4, teachers=4), "--teachers 4: of --pop 4 one must be a student"),
    (dict(task_types="code_o,code_x"), "--task-types: code_x unknown; valid: code_o"),
    (dict(lora_targets="q_proj,nose"), "--lora-targets: nose unknown; valid: q_proj"),
    (dict(prompt_format="chat", n_few_shot=0), "--n-few-shot 0: chat prompts show tasks")])
def test_flags_that_do_not_agree(flags, match):
    with pytest.raises(UserError, match=match):
        config.resolve_config(config.config_of(flags), flags.get("prompt_format", "micro"))
