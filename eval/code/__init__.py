"""Code: `python -m eval.code`."""
