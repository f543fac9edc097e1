"""The measured claims; `python -m bench decode`."""
