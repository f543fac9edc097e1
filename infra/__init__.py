"""What a run needs and nobody studies. Without torch everything that needs it ends here."""
import sys
from importlib.util import find_spec

if not find_spec("torch"):
    sys.exit("torch is not installed: `make setup`, then . .venv/bin/activate")
