"""bench.py measures what it says, at small sizes; a speedrun ends at the goal and counts the tokens before it."""
import sys

import pytest

import bench


def run(monkeypatch, capsys, *words) -> str:
    monkeypatch.setattr(sys, "argv", ["bench.py", *map(str, words)])
    bench.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("command, names", [
    ("decode", ["8 members", "1 member", "no adapter", "prompts alone"]), ("update", ["8 members", "1 member"]), ("step", ["8 members", "1 member"])])
def test_commands_print_a_line_for_each_way(micro_base, monkeypatch, capsys, command, names):
    monkeypatch.setattr(bench, "find_spec", lambda name: None)              # PEFT's way is slow
    out = run(monkeypatch, capsys, command, "--base", micro_base, "--prompt", 6, "--new", 4, "--rows", 16, "--repeats", 1, "--device", "cpu")
    lines = out.splitlines()
    assert f"{command}, 16 rows of 6 + 4 tokens" in lines and "answer tokens/s" in out
    assert [line.split("  ")[1] for line in lines if " s   " in line] == ["copy", "product", *names]
    assert ("of what a copy moves" in out, "of what a product computes" in out) == (command == "decode", command == "update")


@pytest.mark.slow
def test_peft_and_the_verifier(micro_base, monkeypatch, capsys):
    pytest.importorskip("peft")
    assert "PEFT, mixed" in run(monkeypatch, capsys, "decode", "--base", micro_base, "--rows", 16, "--new", 4, "--repeats", 1)
    assert "programs a second" in run(monkeypatch, capsys, "verifier", "--repeats", 1)


def test_bytes_and_operations_by_hand(tiny, population):
    """tiny: 2 layers of width 32, 2 kv heads of 8, untied; 7 linear layers a block; 3 members of rank 4."""
    args = bench.Namespace(prompt=10, new=4)
    matrices = 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48)
    other = 2 * (32 + 16 + 16) + 5 * 32 + 61 * 32                           # biases of q, k, v; norms; head
    factors = 2 * 3 * 4 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 48))
    cache = 8 * 12 * 2 * 2 * 16                                             # 8 rows of 12 slots, keys and values of 2 layers
    assert bench.bytes_of_step(args, tiny, population(tiny), 8) == 4 * (matrices + other + factors + cache)
    # two prompts of 10, eight answers of which 3 tokens are run and 4 are predicted
    assert bench.operations_of_update(args, tiny, 8) == 4 * ((20 + 24) * matrices + 32 * 61 * 32)


def test_a_speedrun_by_hand(micro_base, tmp_path, monkeypatch, capsys):
    """The students' mean is at the goal at the third probe, before the update of the fifth step: four steps of 100 tokens."""
    accuracy, seen = {0: [0.2, 0.2], 2: [0.2, 0.8], 4: [0.8, 0.7]}, []

    def main(cfg, enough):
        total = 0
        for step in range(8):
            row = dict(step=step)
            if step in accuracy:
                row |= dict(probe_tokens=30, heldout_greedy=dict(zip(("S0", "S1"), accuracy[step])))
            total += 100 + row.get("probe_tokens", 0)
            seen.append((cfg.seed, step))
            if enough(row | dict(tokens_generated=total)):
                return

    monkeypatch.setattr(bench.train, "main", main)
    out = run(monkeypatch, capsys, "speedrun", "--base", micro_base, "--seeds", 2, "--out", tmp_path / "new", "--lr", "1e-3")
    assert seen == [(seed, step) for seed in (0, 1) for step in range(5)]
    assert out == "seed 0: 400 tokens\nseed 1: 400 tokens\n"
    accuracy.clear()
    out = run(monkeypatch, capsys, "speedrun", "--base", micro_base, "--seeds", 1, "--out", tmp_path / "other")
    assert out == "seed 0: not reached\n"
