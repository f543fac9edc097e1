"""Mathematics: `python -m eval.math`."""
