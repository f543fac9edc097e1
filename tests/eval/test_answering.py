"""eval.answering: rows end where their format says, calls of many batches give the same answers, kills lose little."""
import dataclasses
import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from tqdm import tqdm

from eval import answering, common
from eval.fetch import Item
from common import UserError
from ranks import DTYPES
from lora import Adapters
from run import RunDir
from tasks.prompts import FORMATS
from tasks.rendering import Rendered
from weights import files_hash, load_base, save_peft

ITEMS = [SimpleNamespace(bench="sums", id=str(i)) for i in range(12)]


def parsed(*more: str):
    return common.parser_of("eval.math", "", 24).parse_args(["--device", "cpu", *more])


def judge(answers):
    return [dict(correct=len(text) % 2 == 0) for _, text in answers]


@pytest.fixture(scope="module")
def population(members):
    return common.load(parsed("--run", str(members)))


def flags(*more: str):
    return parsed("--temperature", "1", "--rollout-batch", "6", *more)


def ask_all(population, out, args, prompt_format="plain", judge=judge):
    """All rows, as answers.jsonl in `out` has them afterwards."""
    run = RunDir(out)
    exam = answering.Exam(ITEMS, lambda item: f"What is {item.id} + 1?", judge, prompt_format)
    return answering.answer_all(population, exam, args, run, common.saved_answers(run))


# ---------------------------------------------------------------- the end of an answer

def test_rows_of_the_envelope_end_at_its_closing_text(population, tmp_path, monkeypatch):
    args = flags("--max-new-tokens", "60")
    whole = [row["text"].removeprefix("<think>") for row in ask_all(population, tmp_path / "whole", args, "envelope")]
    printable = Counter(c for text in whole for c in text[:30] if "!" <= c <= "~")
    closing, n = printable.most_common(1)[0]
    assert n > 5 and FORMATS["base"].closing == "</answer>"
    monkeypatch.setitem(FORMATS, "base", dataclasses.replace(FORMATS["base"], closing=closing))
    ended = ask_all(population, tmp_path / "ended", args, "envelope")
    for text, row in zip(whole, ended, strict=True):
        first, tag, _ = text.partition(closing)
        assert row["text"] == "<think>" + first + tag, "the prompt has opened the thinking"
    assert sum(row["tokens"] < 60 for row in ended) > n / 2, "what is not written costs nothing"


# ---------------------------------------------------------------- calls, kills

def test_calls_of_several_batches_give_the_same_answers_and_survive_a_kill(population, tmp_path, monkeypatch):
    """The remaining calls have the same rows: where the last bits hang on the batch, the answers are those of a run that was not killed."""
    asked, generate, n_judged = [], answering.generate, 0

    def noting(base, adapters, prompts, *rest):
        asked.append(prompts.keys)
        return generate(base, adapters, prompts, *rest)

    def failing(answers):
        nonlocal n_judged
        n_judged += len(answers)
        if n_judged > 20:
            raise RuntimeError("the sandbox has ended")
        return judge(answers)

    monkeypatch.setattr(answering, "generate", noting)
    rows = ask_all(population, tmp_path / "one", flags())
    assert len(rows) == 12 * 3 and [len(keys) for keys in asked] == [36], "little is asked at once"
    asked.clear()
    longest = len("Question: What is 11 + 1?\nAnswer:") + 24                # bytes are tokens
    monkeypatch.setattr(answering, "CALL_TOKENS", 6 * longest * 3 - 1)
    assert ask_all(population, tmp_path / "whole", flags()) == rows
    whole = list(asked)
    assert [len(keys) for keys in whole] == [12, 12, 12]
    asked.clear()
    with pytest.raises(RuntimeError, match="sandbox"):
        ask_all(population, tmp_path / "killed", flags(), judge=failing)
    assert asked == whole[:2] and len((tmp_path / "killed/answers.jsonl").read_text().splitlines()) == 18
    asked.clear()
    assert ask_all(population, tmp_path / "killed", flags()) == rows and asked == whole[1:]
    texts = [(tmp_path / name / "answers.jsonl").read_bytes() for name in ("whole", "killed")]
    assert texts[0] == texts[1]


def test_answers_that_have_ended_are_written_while_others_decode(population, tmp_path, monkeypatch, capsys):
    """One call, interrupted in its middle: what had ended is on the disk, and the same rows decode side by side once more."""
    whole = ask_all(population, tmp_path / "whole", flags())
    assert not (tmp_path / "whole" / answering.CALL).exists()
    asked, generate, bars = [], answering.generate, []

    def noting(base, adapters, prompts, sampling, ranks, watch):
        def looking(rollout, numbers):
            watch(rollout, numbers)
            bars.append(len((tmp_path / "killed/answers.jsonl").read_text().splitlines()) if numbers else 0)
            if len(asked) == 1 and bars[-1] >= 12:
                raise KeyboardInterrupt
        asked.append(prompts)
        return generate(base, adapters, prompts, sampling, ranks, looking)

    monkeypatch.setattr(answering, "generate", noting)
    monkeypatch.setattr(answering, "WRITE_S", -1.0)
    with pytest.raises(KeyboardInterrupt):
        ask_all(population, tmp_path / "killed", flags())
    before = (tmp_path / "killed/answers.jsonl").read_text().splitlines()
    assert 12 <= len(before) < 36 and {place["sample"] for place in map(json.loads, before)} == {0}
    assert ask_all(population, tmp_path / "killed", flags()) == whole and asked[0] == asked[1]
    after = (tmp_path / "killed/answers.jsonl").read_text().splitlines()
    assert after[:len(before)] == before and len(after) == 36 and not (tmp_path / "killed" / answering.CALL).exists()


def test_a_call_without_missing_answers_is_not_repeated(population, tmp_path, monkeypatch):
    """After a kill between the last line and the end of the call; what is new is asked alone."""
    monkeypatch.setattr(answering, "CALL_TOKENS", 1)
    whole = ask_all(population, tmp_path, flags())
    groups = [[item.bench, item.id, member] for item in ITEMS[:2] for member in population.slots]
    (tmp_path / answering.CALL).write_text(json.dumps(groups))
    monkeypatch.setattr(answering, "generate", lambda *what: pytest.fail("asked again"))
    assert ask_all(population, tmp_path, flags()) == whole


# ---------------------------------------------------------------- the base and its adapters

@pytest.mark.parametrize("trained", ["bfloat16", "int8"])
def test_a_run_at_any_precision_can_be_evaluated(bytes_base, tmp_path, monkeypatch, trained):
    """Its base is known by its files, whatever it was cast to."""
    base = load_base(str(bytes_base), int8=True) if trained == "int8" else load_base(str(bytes_base), DTYPES[trained])
    run = tmp_path / "run"
    save_peft(Adapters.on(base.model, 1, 4, 8), 0, run / "step_1" / "S0", str(bytes_base), files_hash(base.path))
    (run / "step_1" / "state.json").write_text("{}")
    (run / "config.json").write_text(json.dumps(dict(base=str(bytes_base), dtype=trained)))
    loads = []
    monkeypatch.setattr(common, "load_base", lambda *how: loads.append(how) or load_base(*how))
    found = common.load(parsed("--run", str(run)))
    assert list(found.slots) == ["S0", "base"] and loads == [(str(bytes_base), torch.float32, torch.device("cpu"), trained == "int8")]
    args = parsed("--run", str(run), "--out", str(tmp_path / "o"))
    config = common.open_out(args, found, "plain", {}, "o")[0].config()
    assert config["base_hash"] == files_hash(bytes_base) and ("torch.int8" in config["dtype"]) is (trained == "int8")
    if trained == "bfloat16":
        half = common.load(parsed("--run", str(run), "--dtype", "bfloat16"))
        with pytest.raises(UserError, match="answers made otherwise: dtype"):
            common.open_out(args, half, "plain", {}, "o")


def test_a_question_is_put_by_the_chat_template_if_any(bytes_base):
    base = load_base(str(bytes_base))

    def decode(prompt_format: str) -> str:
        return base.tokenizer.decode(answering.put("Why?", prompt_format, base).ids)

    assert decode("plain") == "Question: Why?\nAnswer:" and decode("envelope").endswith("User: Why?\nAssistant: <think>")
    template = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}END{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    base.tokenizer.chat_template = template
    assert decode("chat") == "<user>Why?END<assistant>"
    assert answering.pick_prompt_format(parsed(), base) == "plain", "a base that carries its family's template"
    base.tokenizer.chat_template = template.replace("END", "{{ eos_token }}")
    assert answering.pick_prompt_format(parsed(), base) == "chat"


def test_what_a_user_gets_wrong_is_named(members, bytes_base, tmp_path):
    adapter, base = str(members / "step_3" / "S0"), load_base(str(bytes_base))
    wider = Adapters.on(base.model, 1, 8, 8)
    save_peft(wider, 0, tmp_path / "wide", str(bytes_base), files_hash(base.path))
    save_peft(wider, 0, tmp_path / "foreign", "another/base", "0" * 64)
    for words, complaint in (([], "give --base"), (["--run", str(tmp_path)], "no complete checkpoint"),
                             (["--adapters", adapter, str(tmp_path / "wide")], "has rank 8 and alpha 8"),
                             (["--adapters", str(tmp_path)], "was trained on another base|has rank"),
                             (["--base", str(bytes_base), "--adapters", str(tmp_path / "foreign")], "was trained on another base"),
                             (["--adapters", str(bytes_base)], "is no PEFT directory")):
        with pytest.raises(UserError, match=complaint):
            common.load(parsed(*words))
    with pytest.raises(UserError, match="the same answer 3 times"):
        common.check(parsed("--samples", "3"))
    with pytest.raises(UserError, match="did you mean olympiadbench"):
        common.choose("aime24,olympiad", ("aime24", "olympiadbench"))
    with pytest.raises(UserError, match="no chat template"):
        answering.pick_prompt_format(parsed("--prompt", "chat"), base)
    with pytest.raises(UserError, match="lower --max-new-tokens to at most 412"):
        answering.fits(answering.Question(ITEMS[0], Rendered([0] * 100), "base"), 500, 512)


def test_exit_codes(capsys):
    for raised, exit_code in ((UserError("mend"), 2), (OSError("disk"), 1), (KeyboardInterrupt(), 130)):
        with pytest.raises(SystemExit) as end:
            common.command("eval.math", lambda: (_ for _ in ()).throw(raised))
        assert end.value.code == exit_code
    assert "eval.math: mend" in capsys.readouterr().err


def test_what_a_verifier_raises_ends_the_command_and_what_is_written_stays(tmp_path):
    """A bug in a new benchmark's verifier is a traceback, not a wrong answer."""
    def verify(answers):
        return [dict(correct=1 / len(text) == 1) for _, text in answers]

    run, have = RunDir(tmp_path / "o"), {}
    book = answering.Book(run, verify, 1, 1, have, tqdm(disable=True))
    for number, text in (("1", "a"), ("2", "")):
        book.waiting.append((Item("b", number, "?", "a"), dict(bench="b", id=number, member="base", sample=0, text=text)))
    with pytest.raises(ZeroDivisionError):
        book.write()
    assert [(row["id"], row["correct"]) for row in run.rows("answers.jsonl")] == [("1", True)]
