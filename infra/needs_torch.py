"""Imported first by what cannot do without torch: where it is missing, one line says what to install."""
import sys
from importlib.util import find_spec

if not find_spec("torch"):
    sys.exit("torch is not installed: `make setup`, then . .venv/bin/activate")
