"""Benchmarks: `python -m eval.math`, `python -m eval.fetch`."""
