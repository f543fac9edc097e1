"""Children against their parents, operator by operator: how much of what the parents can do survives?

    python -m eval.population.retention --run out/NAME                         # 4 children of every operator
    python -m eval.population.retention --run out/NAME --draws 8 --bench code_o --temperature 1 --k 15
    python -m eval.population.retention --runs out/A out/B --pack born.json.xz   # one table of several runs
    python -m eval.population.retention --from born.json.xz                      # the same without a model

At birth: each operator makes children of the students of the last checkpoint, parents drawn as in training;
children, parents and base solve the held-out tasks of eval.population.heldout in the same batches. Retention
is the child's share of right answers over the mean of its parents'. A base that solves most tasks alone keeps
it near 1 whatever an operator does, so the base stands beside it, and what does not depend on tasks: |dW| of
the child over its parents' mean, the KL divergence per token from the fitter parent's answers (sampled at
temperature 1), and whether a child whose parents think in most of their answers still does. Intervals are
over tasks and runs, of one run over tasks and children; fewer than five have none. After k steps: what the
runs themselves have noted, their students' accuracy on the anchors at the probes after each birth.
"""
import argparse
import contextlib
import dataclasses
import json
import lzma
import math
from pathlib import Path

import numpy as np
import torch

from eval import answering, common
from eval.population import heldout, records
from eval.population.children import children, children_table
from eval.stats import FEWEST_RUNS, interval_of, ratio_bootstrap
from eval.summary import BASE, comparable, shares
from evolve import Member
from generate import Rollout, SamplingParams, generate
from run.checkpoint import RunDir, members_at
from run.platform import open_sandbox
from lora import Adapters
from model import Base
from operators import OPERATORS, dw_norm
from rl import token_logp
from selfplay import make_rng, mean
from tasks.prompts import render
from trueskill_lite import RATINGS

KL_TASKS, KL_ROWS = 24, 8           # tasks on whose answers the divergence is taken; rows at a time


@dataclasses.dataclass(frozen=True)
class Family:
    """A child to be made: its name, its operator and its parents, the fitter first."""
    child: str
    operator: str
    parents: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Child:
    """What became of it: right answers of base, parents (their mean) and child by task (n,), and thinking."""
    operator: str
    base: np.ndarray
    parents: np.ndarray
    right: np.ndarray
    parents_think: float
    think: float
    norm_ratio: float
    kl: float


# ---- at birth ----------------------------------------------------------------------------------------------

def families(students: list[Member], fitness, n_draws: int, key: tuple[int, ...]) -> list[Family]:
    """n_draws children of every operator with enough parents, which are drawn as survivors in training.

    key: the command's seed and the run's, so that no two runs draw the same masks.
    """
    out = []
    for name, operator in OPERATORS.items():
        if operator.n_parents > len(students):
            continue
        for d in range(n_draws):
            parents = make_rng(*key, name, d).sample(students, operator.n_parents)
            parents.sort(key=lambda m: fitness(m.rating), reverse=True)
            out.append(Family(f"{name}/{d}", name, tuple(m.name for m in parents)))
    return out


def born(population: common.Population, some: list[Family],
         key: tuple[int, ...]) -> tuple[common.Population, list[float]]:
    """A population of these children (first slots) and all members; per child |dW| over its parents' mean."""
    old, n = population.adapters, len(some)
    shapes = {path: (A.shape[2], old.B[path].shape[1]) for path, A in old.A.items()}
    device = next(iter(old.A.values())).device
    adapters = Adapters(shapes, n + old.n_members, old.rank, old.alpha, device)
    for slot in range(old.n_members):
        adapters.set_factors(n + slot, old.factors(slot))
    ratios, slots = [], {}
    for i, family in enumerate(some):
        parents = [old.factors(population.slots[name]) for name in family.parents]
        gen = torch.Generator().manual_seed(make_rng(*key, family.child).getrandbits(60))
        with torch.no_grad():
            child = OPERATORS[family.operator].fn(parents, gen)
        adapters.set_factors(i, child)
        slots[family.child] = i
        before = mean(map(dw_norm, parents))
        ratios.append(dw_norm(child) / before if before else math.nan)
    for name, slot in population.slots.items():
        if slot >= 0:
            slots[name] = n + slot
    return dataclasses.replace(population, adapters=adapters, slots=slots), ratios


@torch.inference_mode()
def token_kl(base: Base, adapters: Adapters, r: Rollout, other: int) -> float:
    """KL per token from the members that wrote r (at temperature 1) to the member `other`, estimator k3."""
    total, n = 0.0, 0
    for rows in torch.arange(len(r.length), device=r.ids.device).split(KL_ROWS):
        part = r.select(rows)
        mask = part.mask[:, 1:]
        route = adapters.route(torch.full_like(part.member, other), base.model.embedding.dtype)
        logits = base.model(part.ids[:, :-1], lora=route)[mask]
        logp = token_logp(base, logits, part.ids[:, 1:][mask], 1.0, False)[0]
        gap = logp - part.logp[:, 1:][mask]
        total += (gap.exp() - gap - 1).sum().item()
        n += len(gap)
    return total / max(1, n)


def divergences(children: common.Population, some: list[Family], items: list,
                args: argparse.Namespace) -> list[float]:
    """Per child the divergence from its fitter parent, on that parent's answers to some of the tasks."""
    base = children.base
    ask = heldout.asking(base.prompt_format)
    prompts = [render(ask(item), base.prompt_format, base.tokenizer) for item in items[:KL_TASKS]]
    keys = [(args.seed, i) for i in range(len(prompts))]
    out = []
    for family in some:
        writer = [children.slots[family.parents[0]]] * len(prompts)
        r = generate(base, children.adapters, prompts, writer, keys,
                     SamplingParams(max_new_tokens=args.max_new, rollout_batch=args.max_rows))
        out.append(token_kl(base, children.adapters, r, children.slots[family.child]))
    return out


def told_by(rows: list[dict]) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Member -> share of right answers by task (n,), and member -> share of answers that think."""
    whole = [row | dict(bench="all", id=f"{row['bench']}/{row['id']}") for row in rows]
    share = shares(whole)["all"]
    ids = sorted(share[BASE])
    thinks = {}
    for row in rows:
        thinks.setdefault(row["member"], []).append(row.get("think", False))
    right = {name: np.array([found[i] for i in ids]) for name, found in share.items()}
    return right, {name: float(np.mean(found)) for name, found in thinks.items()}


def at_birth(args: argparse.Namespace, population: common.Population, students: list[Member], fitness, judge,
             out: RunDir, done: list[dict], key: tuple[int, ...]) -> list[Child]:
    """The children of a run; one operator's are in memory at a time."""
    prompt_format = population.base.prompt_format
    items = heldout.kept_items(out.path / "items.jsonl", args.families, args.split, args.limit)
    items = [item for item in items if not item.seen]

    def answer(some: common.Population) -> list[dict]:
        """Its members' answers to all items, judged. Raises OSError where the sandbox failed on one."""
        ask = heldout.asking(prompt_format)
        rows = answering.answer_all(some, items, ask, judge, args, out, done, prompt_format)
        if comparable(rows) != rows:
            raise OSError("the sandbox failed on some answers: give the same command again")
        heldout.note_thinking(rows, items, prompt_format)
        return rows
    slots = {m.name: population.slots.get(m.name, 0) for m in students} | {BASE: -1}
    elders = dataclasses.replace(population, slots=slots)
    rows, found = answer(elders), []
    wanted = families(students, fitness, args.draws, key)
    for operator in dict.fromkeys(family.operator for family in wanted):
        some = [family for family in wanted if family.operator == operator]
        children, ratios = born(elders, some, key)
        alone = {family.child: children.slots[family.child] for family in some}
        right, think = told_by(rows + answer(dataclasses.replace(children, slots=alone)))
        kls = divergences(children, some, items, args)
        for family, ratio, kl in zip(some, ratios, kls):
            parents = np.mean([right[name] for name in family.parents], axis=0)
            before = float(np.mean([think[name] for name in family.parents]))
            found.append(Child(operator, right[BASE], parents, right[family.child], before,
                               think[family.child], ratio, kl))
    return found


def judged(operator: str, runs: list[list[Child]]) -> dict:
    """One operator's line; of several runs each counts once, as the mean of its children."""
    every = [child for run in runs for child in run]
    rows = runs if len(runs) > 1 else [[child] for child in every]
    right = np.stack([np.mean([child.right for child in row], axis=0) for row in rows])
    parents = np.stack([np.mean([child.parents for child in row], axis=0) for row in rows])
    kept = right.mean() / parents.mean() if parents.mean() > 0 else math.nan
    able = [child for child in every if child.parents_think > 0.5]
    return dict(operator=operator, runs=len(runs), draws=len(every), n=right.shape[1],
                base=float(np.mean([child.base for child in every])), parents=float(parents.mean()),
                children=float(right.mean()), retention=float(kept),
                retention_interval=ratio_bootstrap(right, parents) if len(rows) >= FEWEST_RUNS else None,
                difference=float((right - parents).mean()),
                difference_interval=interval_of(right - parents),
                thinking_parents=len(able), still_think=sum(child.think > 0.5 for child in able),
                norm_ratio=float(np.mean([child.norm_ratio for child in every])),
                kl=float(np.mean([child.kl for child in every])))


def pack(found: list[list[Child]], path: Path) -> None:
    """Write the children of each run to a file that `opened` reads."""
    rows = [[dataclasses.asdict(child) for child in some] for some in found]
    text = json.dumps(rows, default=np.ndarray.tolist, separators=(",", ":"))
    path.write_bytes(lzma.compress(text.encode()))


def opened(path: Path) -> list[list[Child]]:
    """What `pack` has written. Raises ValueError where it is something else."""
    try:
        rows = json.loads(lzma.decompress(path.read_bytes()))
        found = []
        for some in rows:
            arrays = [{name: np.array(row[name]) for name in ("base", "parents", "right")} for row in some]
            found.append([Child(**row | told) for row, told in zip(some, arrays)])
        return found
    except (OSError, ValueError, TypeError, LookupError, AttributeError, lzma.LZMAError) as e:
        raise ValueError(f"{path} is no pack of children: {getattr(e, 'strerror', None) or e}") from None


def lines_of(found: list[list[Child]]) -> list[dict]:
    """`judged` of each operator that has children in all runs or some; found: of each run its children."""
    lines = []
    for name in OPERATORS:
        some = [[child for child in children if child.operator == name] for children in found]
        if some := [children for children in some if children]:
            lines.append(judged(name, some))
    return lines


def later(runs: list[Path], k: int) -> list[dict]:
    """What the runs' own records tell of their children at once and after k steps: `children.children`."""
    logs = [(str(run), records.logged(run), records.logged(run, "genealogy.jsonl")) for run in runs]
    return children(logs, lambda course: course["operator"], tuple(dict.fromkeys((1, k))))


# ---- tables ------------------------------------------------------------------------------------------------

def birth_table(lines: list[dict]) -> str:
    """Retention at birth for the terminal."""
    out = ["at birth, on held-out tasks; children of the last checkpoints' students",
           "operator    draws    n  base  parents  kept  95% interval  "
           "difference              thinking   |dW|     KL"]
    for x in lines:
        kept = "{:.2f} .. {:.2f}".format(*x["retention_interval"] or (math.nan, math.nan))
        span = "{:+.2f} .. {:+.2f}".format(*x["difference_interval"] or (math.nan, math.nan))
        think = f"{x['still_think']} of {x['thinking_parents']}"
        out.append(f"{x['operator']:11} {x['draws']:5} {x['n']:4}  {x['base']:.2f}    {x['parents']:.2f}  "
                   f"{x['retention']:5.2f}  {kept:>12}  {x['difference']:+.2f} "
                   f"({span})  {think:>8}  {x['norm_ratio']:5.2f}  {max(0, x['kl']):.3f}")
    return "\n".join([*out, "thinking: children that think in most answers, of those whose parents do"])


# ---- the command line --------------------------------------------------------------------------------------

def children_of(args: argparse.Namespace) -> list[Child]:
    """The children of --run, whose answers and summary go to its folder eval-retention or to --out."""
    config = heldout.run_config(args.run)
    run = RunDir(Path(args.run).expanduser(), writes=False)
    with contextlib.ExitStack() as stack:
        sandbox = stack.enter_context(open_sandbox(args.workers, args.weak_sandbox))
        population = heldout.formatted(args, common.load(args))
        prompt_format = population.base.prompt_format
        args.families = args.families or list(heldout.families_for(prompt_format))
        members, _ = members_at(run, run.steps()[-1])
        hashes = heldout.hashes_of(args.families, args.split)
        out, done = common.open_out(args, population, f"task {prompt_format}", hashes, "eval-retention")
        students = [m for m in members if m.role == "student"]
        fitness = RATINGS[config["rating"]]().fitness
        judge = heldout.judging(sandbox, prompt_format)
        key = args.seed, config["seed"]
        found = at_birth(args, population, students, fitness, judge, out, done, key)
    out.write_json("summary.json", dict(run=str(run.path), temperature=args.temperature, samples=args.samples,
                                        birth=lines_of([found]), k=args.k,
                                        later=later([run.path], args.k)))
    print(f"{args.run}: every answer with its verdict: {out.path / 'answers.jsonl'}")
    return found


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.population.retention", __doc__, None,
                              without=("data", "prompt", "adapters", "against"))
    heldout.judge_flags(parser)
    parser.add_argument("--runs", nargs="+", default=[], metavar="DIR",
                        help="several runs in one table; --out then holds a folder of each")
    parser.add_argument("--pack", default="", metavar="FILE", help="write what the table is made of, too")
    parser.add_argument("--from", dest="source", default="", metavar="FILE", help="only print a pack's table")
    parser.add_argument("--draws", type=int, default=4, help="children of each operator and run")
    parser.add_argument("--k", type=int, default=15, help="steps after a birth at which the records are read")
    parser.add_argument("--split", default="test", choices=heldout.SPLITS)
    parser.set_defaults(max_rows=None, adapters=[])
    args = parser.parse_args(argv)
    if args.source:
        print(birth_table(lines_of(opened(Path(args.source).expanduser()))))
        return 0
    common.check(args)
    runs = args.runs or [args.run]
    if not runs[0]:
        raise ValueError("give --run out/NAME or --runs: parents and operators are those of a run")
    if args.runs and args.run:
        raise ValueError("--run and --runs: give all runs to --runs")
    if args.draws < 1 or args.k < 1:
        raise ValueError(f"--draws {args.draws} and --k {args.k} must be at least 1")
    args.families = common.choose(args.bench, tuple(heldout.ROWS))
    found = []
    for run in runs:
        out = str(Path(args.out) / Path(run).name) if args.out and args.runs else args.out
        found.append(children_of(argparse.Namespace(**vars(args) | dict(run=run, out=out))))
    if args.pack:
        pack(found, Path(args.pack).expanduser())
    lines = lines_of(found)
    paths = [Path(run).expanduser() for run in runs]
    print(f"{birth_table(lines)}\n\n{children_table(later(paths, args.k))}")
    if skipped := [name for name in OPERATORS if name not in {line["operator"] for line in lines}]:
        print(f"not tried, for want of a second student: {', '.join(skipped)}")
    return 0


if __name__ == "__main__":
    common.command("eval.population.retention", main)
