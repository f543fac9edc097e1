"""Children against their parents, operator by operator: how much of what the parents can do survives their recombination?

    python -m eval.population.retention --run out/NAME                                 # every operator, 4 children each; after k steps
    python -m eval.population.retention --run out/NAME --draws 8 --bench code_o --temperature 1 --k 15

At birth: each operator makes children of the students of the last checkpoint, parents drawn as in training; children, parents and
base solve the held-out tasks of eval.population.heldout in the same batches. Retention is the child's share of right answers over the mean
of its parents', with an interval over children and tasks. A base that solves most tasks alone keeps it near 1 whatever an
operator does, so the base stands beside it, and two measures that do not depend on tasks: |dW| of the child over its parents'
mean, and the KL divergence per token from the fitter parent's answers (sampled at temperature 1). After k steps: what the run
itself has noted, its students' accuracy on the anchors at the probes after each birth.
"""
import argparse
import contextlib
import dataclasses
import math
from pathlib import Path

import numpy as np
import torch

from eval import common
from eval.population import heldout
from eval.stats import hierarchical_bootstrap, ratio_bootstrap
from eval.summary import BASE, shares
from evolve import Member
from generate import Rollout, generate
from infra.checkpoint import RunDir, members_at
from infra.platform import open_sandbox
from lora import Adapters
from model import Base
from operators import OPERATORS, dw_norm
from rl import token_logp
from selfplay import make_rng, mean
from tasks.prompts import render
from trueskill_lite import RATINGS

KL_TASKS, KL_ROWS = 24, 8                          # tasks on whose answers the divergence is taken; rows at a time


@dataclasses.dataclass(frozen=True)
class Family:
    """A child to be made: its name, its operator and its parents, the fitter first."""
    child: str
    operator: str
    parents: tuple[str, ...]


def families(students: list[Member], fitness, n_draws: int, seed: int) -> list[Family]:
    """n_draws children of every operator that has enough parents; parents drawn uniformly, as from the survivors in training."""
    out = []
    for name, operator in OPERATORS.items():
        for d in range(n_draws):
            if operator.n_parents <= len(students):
                parents = make_rng(seed, name, d).sample(students, operator.n_parents)
                parents.sort(key=lambda m: fitness(m.rating), reverse=True)
                out.append(Family(f"{name}/{d}", name, tuple(m.name for m in parents)))
    return out


def born(population: common.Population, some: list[Family], seed: int) -> tuple[common.Population, list[float]]:
    """A population of these children (first slots) and of all members of `population`; per child |dW| over its parents' mean."""
    old, n = population.adapters, len(some)
    shapes = {path: (A.shape[2], old.B[path].shape[1]) for path, A in old.A.items()}
    adapters = Adapters(shapes, n + old.n_members, old.rank, old.alpha, next(iter(old.A.values())).device)
    for slot in range(old.n_members):
        adapters.set_factors(n + slot, old.factors(slot))
    ratios = []
    for i, f in enumerate(some):
        parents = [old.factors(population.slots[name]) for name in f.parents]
        with torch.no_grad():
            child = OPERATORS[f.operator].fn(parents, torch.Generator().manual_seed(make_rng(seed, f.child).getrandbits(60)))
        adapters.set_factors(i, child)
        before = mean(map(dw_norm, parents))
        ratios.append(dw_norm(child) / before if before else math.nan)
    slots = {f.child: i for i, f in enumerate(some)} | {name: n + slot for name, slot in population.slots.items() if slot >= 0}
    return dataclasses.replace(population, adapters=adapters, slots=slots), ratios


@torch.inference_mode()
def token_kl(base: Base, adapters: Adapters, r: Rollout, other: int) -> float:
    """KL divergence per token from the members that wrote r (at temperature 1) to the member `other`, by the k3 estimator."""
    total, n = 0.0, 0
    for rows in torch.arange(len(r.length), device=r.ids.device).split(KL_ROWS):
        part = r.select(rows)
        mask, route = part.mask[:, 1:], adapters.route(torch.full_like(part.member, other), base.model.embedding.dtype)
        logp = token_logp(base, base.model(part.ids[:, :-1], lora=route)[mask], part.ids[:, 1:][mask], 1.0, False)[0]
        gap = logp - part.logp[:, 1:][mask]
        total, n = total + (gap.exp() - gap - 1).sum().item(), n + len(gap)
    return total / max(1, n)


def divergences(children: common.Population, some: list[Family], items: list, args: argparse.Namespace) -> list[float]:
    """Per child the divergence from its fitter parent, on that parent's answers to some of the tasks."""
    base, ask, out = children.base, heldout.asking(children.base.prompt_format), []
    prompts = [render(ask(item), base.prompt_format, base.tokenizer) for item in items[:KL_TASKS]]
    for f in some:
        keys, writer = [(args.seed, i) for i in range(len(prompts))], [children.slots[f.parents[0]]] * len(prompts)
        r = generate(base, children.adapters, prompts, writer, keys, 1, 1.0, args.max_new, args.max_rows)
        out.append(token_kl(base, children.adapters, r, children.slots[f.child]))
    return out


def judged(operator: str, some: list[Family], share: dict[str, dict[str, float]], ratios: list[float], kls: list[float]) -> dict:
    """One operator's line: solve rates of base, parents and children on the same items, retention, difference, intervals."""
    ids = sorted(share[BASE])
    rates = lambda name: np.array([share[name][i] for i in ids])
    children = np.stack([rates(f.child) for f in some])                                                # (D, n)
    parents = np.stack([np.mean([rates(p) for p in f.parents], axis=0) for f in some])
    kept = children.mean() / parents.mean() if parents.mean() > 0 else math.nan
    return dict(operator=operator, draws=len(some), n=len(ids), base=float(rates(BASE).mean()),
                parents=float(parents.mean()), children=float(children.mean()), retention=float(kept),
                retention_interval=ratio_bootstrap(children, parents), difference=float((children - parents).mean()),
                difference_interval=hierarchical_bootstrap(children - parents),
                norm_ratio=float(np.mean(ratios)), kl=float(np.mean(kls)))


def at_birth(args: argparse.Namespace, population: common.Population, students: list[Member], fitness, judge, out: RunDir,
             done: list[dict]) -> list[dict]:
    """Every operator's line; one operator's children are in memory at a time."""
    prompt_format = population.base.prompt_format
    items = heldout.kept_items(out.path / "items.jsonl", args.families, args.split, args.limit)
    items = [item for item in items if not item.seen]
    answer = lambda some: common.answer_all(some, items, heldout.asking(prompt_format), judge, args, out, done, prompt_format)
    wanted = families(students, fitness, args.draws, args.seed)
    slots = {m.name: population.slots.get(m.name, 0) for m in students} | {BASE: -1}
    elders = dataclasses.replace(population, slots=slots)
    rows, lines = answer(elders), []
    for operator in dict.fromkeys(f.operator for f in wanted):
        some = [f for f in wanted if f.operator == operator]
        children, ratios = born(elders, some, args.seed)
        own = answer(dataclasses.replace(children, slots={f.child: children.slots[f.child] for f in some}))
        whole = [row | dict(bench="all", id=f"{row['bench']}/{row['id']}") for row in rows + own]
        lines.append(judged(operator, some, shares(whole)["all"], ratios, divergences(children, some, items, args)))
    return lines


# ---- after k steps: the run's own records --------------------------------------------------------------------------------

def later(run: RunDir, k: int) -> list[dict]:
    """Per operator, of the students born in a run: anchor accuracy of the parents at the last probe before the birth, of the
    child at the first probe after it and at the first k steps after it, and of the surviving parents then. None = no record."""
    read = lambda name: run.rows(name, run.sizes()[name])
    probes = [(row["step"], row["anchors_greedy"]) for row in read("metrics.jsonl") if row.get("anchors_greedy")]
    births = [row for row in read("genealogy.jsonl") if row["victim"]["role"] == "student"]
    lines = []
    for operator in dict.fromkeys(row["operator"] for row in births):
        own, found = [row for row in births if row["operator"] == operator], []
        for row in own:
            names = [p["name"] for p in row["parents"]]
            before = next((a for step, a in reversed(probes) if step <= row["step"]), {})
            # a probe comes before its step's update: the first of a child is at the step after its birth
            first, after = (next((a for step, a in probes if step > row["step"] + wait), {}) for wait in (0, k - 1))
            found.append(dict(parents=mean(before.get(name) for name in names), first=first.get(row["child"]),
                              child=after.get(row["child"]), parents_then=mean(after.get(name) for name in names)))
        both = [x for x in found if x["child"] is not None and x["parents"]]
        means = {key: mean(x[key] for x in both) for key in ("parents", "first", "child", "parents_then")}
        lines.append(dict(operator=operator, births=len(own), recorded=len(both), **means,
                          retention=mean(x["child"] / x["parents"] for x in both)))
    return lines


def birth_table(lines: list[dict]) -> str:
    """Retention at birth for the terminal."""
    out = ["at birth, on held-out tasks; children of the last checkpoint's students",
           f"{'operator':11} {'draws':>5} {'n':>5}   base  parents  children  retention  95% interval    child - parents"
           "  95% interval      |dW|     KL"]
    for x in lines:
        (a, b), (low, high) = x["retention_interval"], x["difference_interval"]
        out.append(f"{x['operator']:11} {x['draws']:5} {x['n']:5}  {x['base']:.3f}    {x['parents']:.3f}     "
                   f"{x['children']:.3f}  {x['retention']:9.3f}  {a:.3f} .. {b:.3f}  {x['difference']:+15.3f}  "
                   f"{low:+.3f} .. {high:+.3f}  {x['norm_ratio']:5.2f}  {x['kl']:.3f}")
    return "\n".join(out)


UNKNOWN = """not known from a run's records: teachers, who never solve anchors; children replaced before that probe; how much of a
child's change is its training since, for which the surviving parents (parents then) are the only comparison. A few births have
no interval worth printing."""


def later_table(lines: list[dict], k: int) -> str:
    """What the run noted after births, for the terminal, and what it cannot tell."""
    cell = lambda x: "-" if x is None else f"{x:.2f}"
    out = [f"\nafter {k} steps or more, as the run noted it: students' accuracy on the anchors, greedily",
           f"{'operator':11} births  recorded  parents before  child first  child then  retention  parents then"]
    for x in lines:
        out.append(f"{x['operator']:11} {x['births']:6} {x['recorded']:9} {cell(x['parents']):>15} {cell(x['first']):>12} "
                   f"{cell(x['child']):>11} {cell(x['retention']):>10} {cell(x['parents_then']):>13}")
    return "\n".join([*out, *([] if lines else ["no student was born in this run"]), UNKNOWN])


def main(argv: list[str] | None = None) -> int:
    """The command line. Raises ValueError for what the user can mend."""
    parser = common.parser_of("eval.population.retention", __doc__, None, without=("data", "prompt", "adapters", "against"))
    heldout.judge_flags(parser)
    parser.add_argument("--draws", type=int, default=4, help="children of each operator")
    parser.add_argument("--k", type=int, default=15, help="steps after a birth at which the run's own records are read")
    parser.add_argument("--split", default="test", choices=heldout.SPLITS)
    parser.set_defaults(max_rows=None, adapters=[])
    args = parser.parse_args(argv)
    common.check(args)
    if not args.run:
        raise ValueError("give --run out/NAME: parents and operators are those of a run")
    if args.draws < 1 or args.k < 1:
        raise ValueError(f"--draws {args.draws} and --k {args.k} must be at least 1")
    config, run = heldout.run_config(args.run), RunDir(Path(args.run).expanduser(), writes=False)
    args.families = common.choose(args.bench, tuple(heldout.ROWS))
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
        lines = at_birth(args, population, students, fitness, heldout.judging(sandbox, prompt_format), out, done)
    records = later(run, args.k)
    out.write_json("summary.json", dict(run=str(run.path), temperature=args.temperature, samples=args.samples, birth=lines,
                                        k=args.k, later=records))
    print(f"{birth_table(lines)}\n{later_table(records, args.k)}\nevery answer with its verdict: {out.path / 'answers.jsonl'}")
    if skipped := [name for name, o in OPERATORS.items() if o.n_parents > len(students)]:
        print(f"not tried, for the run has only {len(students)} student: {', '.join(skipped)}")
    return 0


if __name__ == "__main__":
    common.command("eval.population.retention", main)
