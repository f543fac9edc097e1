"""The measured claims; `python -m bench decode`."""
import infra  # noqa: F401  (says what to do without torch)
