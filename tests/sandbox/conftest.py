"""Sandboxes that the tests of a file share, and verifier.py as an ordinary user."""
import os
import subprocess
import sys

import pytest
from cases import CPU_S
from siege import battlefield

import verifier
from verifier import Sandbox


@pytest.fixture(scope="session", autouse=True)
def linux():
    if sys.platform != "linux":
        pytest.skip("the walls are of Linux")


@pytest.fixture(scope="module")
def narrow():
    """The profile of training, with a secret beside it that the thieves among the attacks look for."""
    os.environ["SECRET"] = "SECRET=731"
    with Sandbox(workers=2, cpu_s=CPU_S) as sandbox:
        yield sandbox
    del os.environ["SECRET"]


@pytest.fixture(scope="module")
def outside():
    """What programs do outside, as siege.py sees it."""
    with battlefield() as outside:
        yield outside


@pytest.fixture(scope="module")
def as_nobody():
    """Runs `python verifier.py ...` as an ordinary user."""
    user = dict(user=65534, group=65534, extra_groups=[]) if os.getuid() == 0 else {}
    user.update(cwd="/", capture_output=True, text=True)
    for python in sys.executable, "/usr/bin/python3":
        try:
            subprocess.run([python, "-c", f"open({verifier.__file__!r})"], check=True, **user)
        except (OSError, subprocess.CalledProcessError):
            continue
        return lambda *words, file=verifier.__file__: subprocess.run([python, file, *words], **user)
    pytest.skip("an ordinary user can read neither an interpreter nor this folder")
