"""Tasks of a file that no teacher writes (--tasks), in a new order each time through."""
import functools
import random

from tasks import read_tasks
from tasks.base import Proposal

FRESH = "micro"                 # in place of a file: random programs (selfplay.deal)


@functools.lru_cache(maxsize=1)
def read_given(path: str, played: tuple[str, ...]) -> list[Proposal]:
    """The tasks of a file. Raises ValueError where their types are not those that the run plays."""
    given = [] if path == FRESH else read_tasks(path)
    odd = sorted({p.kind for p in given} ^ set(played))
    if odd and path != FRESH:
        raise ValueError(f"--tasks {path} and --task-types {','.join(played)} differ in {', '.join(odd)}: "
                         "give the types of the file's tasks")
    return given


@functools.lru_cache(maxsize=8)
def order(n: int, seed: int, lap: int) -> list[int]:
    """n places in the order of a lap."""
    return random.Random(f"{seed}/lap/{lap}").sample(range(n), n)


def given_task(path: str, played: tuple[str, ...], types: tuple[str, ...], seed: int,
               number: int) -> Proposal:
    """A proposal: the task of this number in a run, of one of these types; drawn by the arguments alone."""
    pool = [p for p in read_given(path, played) if p.kind in types]
    lap, place = divmod(number, len(pool))
    return pool[order(len(pool), seed, lap)[place]]
