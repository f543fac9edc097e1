"""A chat template that writes the date: a run and an evaluation keep theirs."""
import datetime
import json
import re

import pytest
from small_tokenizers import CHATML, byte_level, fast
from tiny_base import write_tiny
from tiny_run import play, rows

from eval import common
from eval.answering import put
from common import UserError
from run import startup
from tasks import rendering
from tasks.prompts import Prompt
from tasks.rendering import render
from weights import load_base

DATED = "Today is {{ strftime_now('%d %b %Y') }}.\n" + CHATML          # as Llama 3.2's
FLAGS = dict(name="run", pop=2, task_types="code_o", n_prompts=1, proposals_per_prompt=2, n_few_shot=1, samples_per_task=1, max_new_tokens=12, rank=2,
             evolve="none", probe_every=0, save_every=1, n_heldout=0, device="cpu")


@pytest.fixture(scope="module")
def dated(tmp_path_factory):
    """A small random base whose template writes the date."""
    path = tmp_path_factory.mktemp("dated")
    wrapped = fast(byte_level(), DATED, eos_token="<|im_end|>")
    write_tiny(path, "qwen2", vocab_size=len(wrapped), max_position_embeddings=4096, eos_token_id=2)
    wrapped.save_pretrained(path)
    return path


def on_day(monkeypatch, day: str) -> None:
    """From now on it is this day."""
    class Fixed(datetime.date):
        @classmethod
        def today(cls):
            return datetime.date.fromisoformat(day)
    monkeypatch.setattr(rendering, "date", Fixed)


def test_a_template_is_told_the_date(dated):
    tokenizer = load_base(str(dated)).tokenizer
    shown = tokenizer.decode(render(Prompt("Why?"), "chat", tokenizer, "2024-02-29").ids)
    assert shown.startswith("Today is 29 Feb 2024.\n")
    assert re.match(r"Today is \d\d \w+ \d{4}\.\n", tokenizer.decode(render(Prompt("Why?"), "chat", tokenizer).ids)), "today"
    assert rendering.day_told(tokenizer) == str(datetime.date.today())
    tokenizer.chat_template = CHATML
    assert rendering.day_told(tokenizer) == "", "no day matters"
    tokenizer.chat_template = """{% if strftime_now is defined %}{{strftime_now( format="%Y-%m-%d")}}{% endif %}"""
    assert tokenizer.decode(render(Prompt("Why?"), "chat", tokenizer, "2024-02-29").ids) == "2024-02-29"


def test_a_run_keeps_its_date_over_a_resume_on_another_day(dated, tmp_path, monkeypatch):
    flags = FLAGS | dict(base=dated)
    on_day(monkeypatch, "2026-03-01")
    whole = play(**flags, steps=2, out=tmp_path / "whole")
    begun = play(**flags, steps=1, out=tmp_path / "stopped")
    on_day(monkeypatch, "2026-03-02")
    resumed = play(**flags, steps=2, out=tmp_path / "stopped", resume="auto")
    assert begun == resumed and (whole / "tasks.jsonl").read_bytes() == (resumed / "tasks.jsonl").read_bytes()
    other = play(**flags, steps=1, out=tmp_path / "next")
    assert json.loads((other / "config.json").read_text())["date"] == "2026-03-02"
    assert [row["text"] for row in rows(other, "tasks")] != [row["text"] for row in rows(whole, "tasks")][:2], "the date is read"
    given = play(**flags, steps=1, out=tmp_path / "given", date="2026-03-01")
    assert [row["text"] for row in rows(given, "tasks")] == [row["text"] for row in rows(whole, "tasks")][:2]
    with pytest.raises(UserError, match="date .'2026-03-01' -> '2026-03-02'"):
        play(**flags, steps=3, out=tmp_path / "stopped", resume="auto", date="2026-03-02")
    with pytest.raises(UserError, match="--date 1 March: give a day as YYYY-MM-DD"):
        play(**flags, steps=1, out=tmp_path, date="1 March")
    with startup.opened(str(resumed), "cpu") as (setup, _):
        assert setup.base.day == "2026-03-01"


def test_an_evaluation_keeps_its_date(dated, tmp_path, monkeypatch):
    """That of its run, else its first day's."""
    args = common.parser_of("eval.math", "", 24).parse_args(["--device", "cpu", "--base", str(dated), "--out", str(tmp_path / "out")])
    for day in ("2026-03-01", "2026-03-02"):
        on_day(monkeypatch, day)
        population = common.load(args)
        common.open_out(args, population, "chat", {}, "out")[0]._lock.close()
        asked = population.base.tokenizer.decode(put("Why?", "chat", population.base).ids)
        assert asked.startswith("Today is 01 Mar 2026.") and population.base.day == "2026-03-01"
    (tmp_path / "config.json").write_text(json.dumps(dict(date="2025-12-31")))
    args.run = str(tmp_path)
    assert common.of_run(args, "date") == "2025-12-31"
