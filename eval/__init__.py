"""Benchmarks: `python -m eval.code`, `eval.math`, `eval.general`; of populations: eval.population."""
import infra  # noqa: F401  (says what to do without torch)
