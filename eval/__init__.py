"""Benchmarks: `python -m eval.math`, `python -m eval.fetch`."""
import infra  # noqa: F401  (says what to do without torch)
