"""Holds the run's memory of tasks: few-shot tasks to show to teachers, and which structures have been seen.

The tasks of a type are capped, oldest out; the keys are kept for the whole run, because teachers that may
repeat themselves collapse onto one cheap trick (LOG.md). `tasks.jsonl` is the archive's own log: a resumed
run reads it back.
"""
from collections import Counter, defaultdict, deque
from math import comb
from random import Random

from tasks.base import Task

WINDOW = 512                    # latest tasks that majority_baseline and unique_at_64 look at


class Archive:
    """Holds tasks by type in order of arrival, at most `cap` each, and all keys that were ever added."""

    def __init__(self, cap: int = 16384):
        self.tasks: dict[str, list[Task]] = defaultdict(list)
        self.seeds: list[Task] = []
        self.keys: set[str] = set()
        self.structures: set[str] = set()
        self.recent: deque[str] = deque(maxlen=WINDOW)
        self.cap = cap
        self.n_added = 0

    def add(self, task: Task, structure: str) -> None:
        """Appends a task; `structure` is the structural hash of its program, whatever the key is."""
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
        """Returns up to k different tasks of a type, or of the seeds if it has none. In code_f the first one
        has the program for which inputs are asked."""
        pool = self.tasks[kind]
        if not pool:
            pool = [task for task in self.seeds if task.kind.startswith("code")]
        if kind != "code_f":
            return rng.sample(pool, min(k, len(pool)))
        programs = self.tasks["code_o"] + self.tasks["code_i"]
        first = rng.choice(programs or pool)
        return [first, *rng.sample(pool, min(max(0, k - 1), len(pool)))]

    def shorter(self, task: Task) -> list[Task]:
        """Returns a list of the task with the longest program that is shorter than this one's, or []."""
        longest = []
        for other in [*self.tasks["code_o"], *self.tasks["code_i"], *self.seeds]:
            if len(other.program) < len(task.program):
                if not longest or len(other.program) > len(longest[0].program):
                    longest = [other]
        return longest

    def majority_baseline(self, kind: str) -> float:
        """Returns how often guessing the most frequent output among the latest tasks of a type is right."""
        outputs = Counter(task.outputs for task in self.tasks[kind][-WINDOW:])
        return max(outputs.values(), default=0) / max(1, outputs.total())

    def unique_at_64(self, m: int = 64) -> float:
        """Returns the expected number of different structures among m of the latest tasks (Hurlbert 1971, eq.
        17). By it, runs with different numbers of tasks can be compared."""
        n = len(self.recent)
        m = min(m, n)
        expected = 0.0
        for count in Counter(self.recent).values():
            expected += 1 - comb(n - count, m) / comb(n, m)
        return expected
