"""General knowledge: `python -m eval.general`."""
