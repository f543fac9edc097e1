"""Nobody escapes, forges, hangs or poisons: hostile programs, see attacks.txt."""
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import siege as siege_module
from cases import LOOP, one
from siege import assault, battlefield, left_over, siege

from verifier import Sandbox

SIEGE = Path(os.environ.get("HOSTILE", "nowhere"))         # a folder of hostile programs
# [(name, its verdicts by "|", program)]
ATTACKS = re.findall(r"^### (.*): (.*)\n((?:(?!### ).*\n)+)", Path(__file__).with_name("attacks.txt").read_text(), re.M)


def wanting_out():
    """Attacks that try to get out of their child, and not just to crash or to last."""
    families = "file", "forge", "net", "proc", "sec", "steal"
    return [(name, want, code) for name, want, code in ATTACKS if name.split()[0] in families and "timeout" not in want]


@pytest.mark.parametrize("name, want, code", ATTACKS, ids=[name for name, _, _ in ATTACKS])
def test_attack(narrow, outside, name, want, code):
    if want.startswith("= "):
        assert one(narrow, code).outputs == (want[2:],)
    else:
        outcome, text = assault(narrow, code, want, 731, outside)
        assert outcome == "survived", text


def test_what_happens_outside_is_seen(narrow):
    with battlefield() as outside:
        assert outside() == []
        os.remove(os.path.join(outside.folder, "keep"))
        os.mkdir(os.path.join(outside.folder, "made"))
        assert outside() == ["keep", "made"]
    with ThreadPoolExecutor() as pool:
        verdict = pool.submit(one, narrow, LOOP, "2", cpu_s=1)
        while not verdict.done() and not left_over(narrow, tries=1):
            time.sleep(0.01)
        assert not verdict.done(), "the process at work was seen"
    assert left_over(narrow) == set()


def test_walls_of_the_wide_profile(wide, outside):
    """With more to import and larger limits: other verdicts, but nobody gets out."""
    for name, want, code in wanting_out():
        if not name.startswith("forge"):
            assert assault(wide, code, want, 731, outside)[0] in ("survived", "wrong"), name


@pytest.mark.slow
def test_attacks_as_an_ordinary_user_without_namespaces(as_nobody):
    """In the weakest surroundings that are accepted, as a folder for the siege."""
    with battlefield() as readable_by_all:
        folder = Path(readable_by_all.folder)
        for name, want, code in wanting_out():
            file = folder / (re.sub(r"\W", "_", name) + ".py")
            file.write_text(f"# want: {want}\n{code}")
        done = as_nobody(str(folder), "--without", "namespaces", file=siege_module.__file__)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and counts["survived"] == counts["programs"] > 80, done.stdout
    assert counts["tier"] == "no namespaces"


@pytest.mark.slow
@pytest.mark.skipif(not SIEGE.is_dir(), reason="HOSTILE=DIR names a folder of hostile programs")
def test_siege_of_the_collection(capsys):
    with Sandbox(workers=2) as sandbox:
        assert siege(sandbox, SIEGE), capsys.readouterr().out
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["survived"] == counts["programs"] > 100
