"""Nobody escapes, forges, hangs or poisons: hostile programs, see attacks.txt."""
import json
import os
import re
import sys
import tempfile
from pathlib import Path

import pytest
import siege as siege_module
from cases import ATTACKS, HONEST, ROOT, one, wants_out
from siege import MARKS, fresh_marks, left_over, marks, processes, siege, timed

from verifier import Job, Sandbox

SIEGE = ROOT.parent / "shared" / "attacks"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are of Linux")


@pytest.mark.parametrize("name, want, code", ATTACKS, ids=[name for name, _, _ in ATTACKS])
def test_attack(narrow, name, want, code):
    before = processes(narrow)
    with fresh_marks() as folder:
        verdict, took, late = timed(narrow, Job(code.replace(MARKS, folder), ("3",)))
        value, error = verdict.outputs[0], verdict.errors[0]
        if want.startswith("= "):
            assert value == want[2:]
        else:
            assert ("value" if error is None else error.split(":")[0]) in want.split("|"), verdict
        assert not (value or "").startswith('"LEAK') and "731" not in (value or "")
        assert re.fullmatch("[ -~]{0,200}", error or "")
        assert marks(folder) == [] and not left_over(narrow, before) and not late, took
    assert narrow.run([HONEST])[0].outputs == ('{"t":[[1,2],2.0,2]}',)


def test_attacks_cover_every_family():
    families = "crash exit file flood forge hang lie mem net proc sec source steal semantics"
    assert len(ATTACKS) >= 60 and {name.split()[0] for name, _, _ in ATTACKS} >= set(families.split())
    assert len(ATTACKS) == Path(__file__).with_name("attacks.txt").read_text().count("### ")


def test_marks_are_seen_and_nobody_elses():
    """A program that got out would be noticed, whatever another siege left behind."""
    with fresh_marks() as folder, fresh_marks() as another:
        assert folder != another and marks(folder) == [] and os.stat(folder).st_mode & 0o777 == 0o777
        os.remove(os.path.join(folder, "keep"))
        os.mkdir(os.path.join(folder, "made"))
        assert marks(folder) == ["keep", "made"] and marks(another) == []
    assert not os.path.exists(folder)


def test_walls_of_the_wide_profile(wide):
    """Those attacks that want out, with more to import and larger limits."""
    for name, want, code in ATTACKS:
        if not wants_out(name, want) or name.startswith("forge"):
            continue
        before = processes(wide)
        with fresh_marks() as folder:
            verdict = one(wide, code.replace(MARKS, folder))
            value = verdict.outputs[0] or ""
            assert not value.startswith('"LEAK') and "731" not in value, (name, verdict)
            assert marks(folder) == [] and not left_over(wide, before), name


def test_attacks_as_an_ordinary_user_without_namespaces(as_nobody):
    """Those that want out, in the weakest surroundings that are accepted, as a folder for the siege."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for name, want, code in ATTACKS:
            if wants_out(name, want):
                header = f"# kind: {name.split()[0]}\n# want: {want.replace('value', 'fail')}\n"
                file = re.sub(r"\W", "_", name) + ".py"
                Path(folder, file).write_text(header + code)
        done = as_nobody(folder, "--without", "namespaces", file=siege_module.__file__)
    counts = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0 and counts["survived"] == counts["programs"] > 80, done.stdout
    assert counts["tier"] == "no namespaces"


@pytest.mark.slow
@pytest.mark.skipif(not SIEGE.is_dir(), reason="the collection of attacks is not here")
def test_siege_of_the_collection(capsys):
    with Sandbox(workers=2) as sandbox:
        assert siege(sandbox, str(SIEGE)), capsys.readouterr().out
    counts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert counts["survived"] == counts["programs"] > 100
