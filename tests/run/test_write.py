"""A teacher of a finished run writes tasks that a run without teachers trains on."""
import json

import pytest

import train
from run.write import write
from tasks import read_tasks

TINY = dict(steps=2, pop=2, n_prompts=1, proposals_per_prompt=4, samples_per_task=2, max_new_tokens=48, n_heldout=1,
            probe_every=0)


def test_what_a_teacher_writes_is_trained_on(micro_base, tmp_path):
    flags = TINY | dict(base=str(micro_base), out=str(tmp_path))
    run = train.main(train.Config(**flags, name="first")).path
    rows = [json.loads(line) for line in write(str(run), "T0", 5)]
    told = [json.loads(line) for line in (run / "tasks.jsonl").read_text().splitlines()]
    keys = [row["key"] for row in rows]
    assert len(set(keys)) == 5 and not set(keys) & {row.get("key") for row in told}
    path = tmp_path / "some.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_tasks(path)) == 5
    done = train.main(train.Config(**flags, name="second", tasks=str(path), seed_tasks=str(run / "tasks.jsonl"))).path
    dealt = [json.loads(line) for line in (done / "tasks.jsonl").read_text().splitlines()]
    assert len(dealt) == 8 and {row["program"] for row in dealt} == {row["program"] for row in rows}
    members = json.loads((done / "metrics.jsonl").read_text().splitlines()[-1])["members"]
    assert members["T0"]["grad_norm"] == 0 and members["S0"]["solve_rate"] is not None
    with pytest.raises(ValueError, match="the teachers of step 2 are T0"):
        next(write(str(run), "T9", 5))
