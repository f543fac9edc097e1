"""The measured claims; `python -m bench decode`."""
import infra.needs_torch  # noqa: F401  (says what to do without torch)
