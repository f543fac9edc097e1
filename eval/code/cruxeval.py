"""CRUXEval as a benchmark: its questions are tasks of self-play, put and verified as in training."""
import argparse

from eval import answering, common, fetch
from eval.population.heldout import Item, ask_all, examiner, loaded
from infra.errors import demand
from sandbox.values import decode
from tasks import cruxeval
from tasks.prompts import fenced, show
from verifier import Sandbox

SETS = tuple(cruxeval.KINDS)
# --prompt -> prompt format
FORMATS_OF = {
    "auto": "",
    "chat": "chat",
    "direct": "direct",
    "envelope": "base",
}


def items_of(
    args: argparse.Namespace,
    benches: list[str],
    sandbox: Sandbox,
) -> tuple[list[Item], dict[str, str]]:
    """The tasks of --split, --limit of each benchmark, and the file's SHA-256 by its name."""
    known, = fetch.FILES["cruxeval"]
    path, raw, sha = fetch.read("cruxeval", known, args.data)
    rows = cruxeval.rows_of(raw.decode("utf-8", "replace"), args.split.replace("all", ""))
    demand(rows, f"{path} is not the published file: remove it, and it is fetched again")
    items = []
    for bench in benches:
        tasks = cruxeval.tasks_of(rows, cruxeval.KINDS[bench], "exact", sandbox.run)
        for id in list(tasks)[:args.limit or None]:
            items.append(Item(bench, id, tasks[id]))
    return items, {known["file"]: sha}


def published(item: Item) -> str:
    """The published answer to a task, as a model that follows its prompt gives it."""
    if item.bench == "cruxeval-i":
        return fenced("input", item.task.inputs[0])
    return fenced("output", show(decode(item.task.outputs[0])))


def main(args: argparse.Namespace, benches: list[str], sandbox: Sandbox) -> int:
    """Asks base and members; 0, or 1 where a published answer does not pass the self-test."""
    items, hashes = items_of(args, benches, sandbox)
    if args.self_test:
        _, verify = examiner(sandbox, "direct")
        return answering.self_test(items, published, lambda answers, _: verify(answers))
    demand(args.prompt in FORMATS_OF, f"--prompt {args.prompt}: CRUXEval's questions are tasks of self-play, "
           f"which are put as {', '.join(FORMATS_OF)}")
    args.prompt_format = FORMATS_OF[args.prompt]
    population = loaded(args)
    out, rows = ask_all(args, population, sandbox, items, hashes, f"eval-cruxeval-{args.split}")
    common.conclude(args, out, rows, split=args.split, limit=args.limit, sandbox=sandbox.tier)
    return 0
