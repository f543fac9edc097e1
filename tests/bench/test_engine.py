"""bench decode, update, step and verifier: their figures, at small sizes."""
import pytest

from bench.__main__ import parser


def figures_of(*words) -> dict:
    args = parser().parse_args([*map(str, words), "--repeats", "1"])
    return args.work(args)


@pytest.mark.parametrize("command, names", [("decode", {"pop8", "pop1", "base"}), ("update", {"pop8", "pop1"}), ("step", {"pop8", "pop1"})])
def test_figures(command, names, capsys):
    figures = figures_of(command, "--shape", "micro", "--prompt", 6, "--new", 4, "--rows", 16, "--device", "cpu")
    assert set(figures) == {f"x_{name}_16" for name in names} and figures["x_pop8_16"] == 1 and min(figures.values()) > 0
    assert "16 rows: pop8" in capsys.readouterr().out


@pytest.mark.slow
def test_peft_decodes_beside_us(micro_base):
    pytest.importorskip("peft")
    assert figures_of("decode", "--base", micro_base, "--prompt", 6, "--new", 4, "--rows", 16)["x_peft_mixed_16"] > 0


def test_the_verifier_is_timed():
    figures = figures_of("verifier", "--n", 40)
    assert figures["programs_per_s"] > 0 and figures["x_python_c"] > 0
    assert figures["x_portable_attempts"] > 0 and figures["x_portable_proposals"] > 0
