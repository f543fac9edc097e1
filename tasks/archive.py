"""The run's memory of tasks: few-shot tasks to show to teachers, and which structures have been seen.

The tasks of a type are capped, oldest out; the keys are kept for the whole run, because teachers that may
repeat themselves collapse onto one cheap trick (LOG.md). `tasks.jsonl` is the archive's own log: a resumed
run reads it back.
"""
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from math import comb
from random import Random

from tasks.base import Task

WINDOW = 512                    # latest tasks that majority_baseline and unique_at_64 look at


class Archive:
    """Tasks by type in order of arrival, at most `cap` each, and the set of all keys ever added."""

    def __init__(self, cap: int = 16384):
        self.tasks: dict[str, list[Task]] = defaultdict(list)
        self.seeds: list[Task] = []
        self.keys: set[str] = set()
        self.structures: set[str] = set()
        self.recent: deque[str] = deque(maxlen=WINDOW)
        self.cap, self.n_added = cap, 0

    def add(self, task: Task, structure: str) -> None:
        """Append a task; `structure` is the structural hash of its program, whatever the key is."""
        self.keys.add(task.key)
        self.structures.add(structure)
        self.recent.append(structure)
        self.n_added += 1
        if task.step < 0:
            self.seeds.append(task)
        pool = self.tasks[task.kind]
        pool.append(task)
        del pool[:-self.cap]

    def references(self, kind: str, k: int, rng: Random) -> list[Task]:
        """Up to k distinct few-shot tasks, or seeds; in code_f the first one is to be given inputs."""
        programs = self.tasks["code_o"] + self.tasks["code_i"]
        pool = self.tasks[kind] or [task for task in self.seeds if task.kind.startswith("code")]
        if kind != "code_f":
            return rng.sample(pool, min(k, len(pool)))
        return [rng.choice(programs or pool), *rng.sample(pool, min(max(0, k - 1), len(pool)))]

    def shorter(self, task: Task) -> list[Task]:
        """Returns the longest program of the archive that is shorter than a task's, as a list; [] if none is."""
        programs = [*self.tasks["code_o"], *self.tasks["code_i"], *self.seeds]
        found = [other for other in programs if len(other.program) < len(task.program)]
        return sorted(found, key=lambda other: len(other.program))[-1:]

    def sample(self, kinds: Iterable[str], n: int, rng: Random) -> list[Task]:
        """Up to n different ones of the latest tasks of these types."""
        latest = [task for kind in kinds for task in self.tasks[kind][-WINDOW:]]
        # given tasks come again
        different = list({(task.kind, task.program, task.inputs): task for task in latest}.values())
        return rng.sample(different, min(n, len(different)))

    def majority_baseline(self, kind: str) -> float:
        """How often guessing the most frequent output among the latest tasks of a type is right."""
        outputs = Counter(task.outputs for task in self.tasks[kind][-WINDOW:])
        return max(outputs.values(), default=0) / max(1, outputs.total())

    def unique_at_64(self, m: int = 64) -> float:
        """Expected distinct structures among m of the latest tasks (Hurlbert 1971, eq. 17). Comparable
        between runs whose teachers emit different numbers of tasks."""
        n = len(self.recent)
        m = min(m, n)
        return sum(1 - comb(n - count, m) / comb(n, m) for count in Counter(self.recent).values())
