"""Benchmarks: `python -m eval.code`, `eval.math`, `eval.general`; of populations: eval.population."""
import infra.needs_torch  # noqa: F401  (says what to do without torch)
