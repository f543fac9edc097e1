"""The published benchmark files, in --data DIR under the names in published.json, perhaps with .gz.

What is not there is fetched. Hashes are SHA-256 of the contents, decompressed; a file of another hash that
lies there is used, and a note says so.
"""
import argparse
import gzip
import hashlib
import io
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch.hub import download_url_to_file

from eval import common
from infra.errors import UserError, demand, explained
from infra.files import json_object

# benchmark -> its files: name on the disk, address, SHA-256 of the editions that we know
FILES = json.loads(Path(__file__).with_name("published.json").read_text())
LARGE = "livecodebench"                         # 4.4 GB, fetched where it is named


@dataclass(frozen=True)
class Item:
    """One question, as it is put or as text, with its gold answer."""
    bench: str
    id: str
    question: str
    gold: str


def published(item: Item) -> str:
    """The gold answer, for a self-test."""
    return item.gold


class Row(dict):
    """A row of a published file. Where a field is missing or of another type, it is another file."""

    def __missing__(self, name: str) -> None:
        raise UserError(f"it lacks {name!r}")

    def typed(self, name: str, *kinds: type) -> object:
        """A field's value, of one of these types. Raises UserError otherwise."""
        value = self[name]
        demand(isinstance(value, kinds), f"{name!r} is {value!r:.60}")
        return value


def read(name: str, known: dict, data: str) -> tuple[Path, bytes, str]:
    """Path, contents and SHA-256 of a benchmark's file, which is fetched unless it is there. Raises
    UserError where it cannot be had, is damaged, or is fetched and another one."""
    path = Path(data).expanduser() / known["file"]
    packed = path.with_name(f"{path.name}.gz")
    if packed.is_file() or known["url"].endswith(".gz") and not path.is_file():
        path = packed
    is_new = not path.is_file()
    with explained(f"{path} is not there or damaged: remove it, put {known['url']} there, or pass --data DIR",
                   (OSError, EOFError, zlib.error)):
        if is_new:
            print(f"{name}: {known['url']} -> {path}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            download_url_to_file(known["url"], str(path))
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path == packed else raw
    sha = hashlib.sha256(raw).hexdigest()
    if sha not in known["sha256"]:
        if is_new:
            path.unlink()
            raise UserError(f"{known['url']} gave another file than we know: try again, or pass --data DIR "
                             "with the edition that you trust")
        print(f"note: {path} is not an edition of {name} that we know (SHA-256 {sha})", file=sys.stderr)
    return path, raw, sha


def load(args: argparse.Namespace, sets: tuple[str, ...], make: Callable) -> tuple[list, dict[str, str]]:
    """make(name, number, Row) of the first rows of each --bench, SHA-256 by file. Raises UserError, as `make`
    does for a row that is not the published one's."""
    items, hashes = [], {}
    for name in common.choose(args.bench, sets) or [name for name in sets if name != LARGE]:
        end = len(items) + (args.limit or sys.maxsize)
        for known in FILES[name]:
            path, raw, hashes[known["file"]] = read(name, known, args.data)
            # Without a row nothing would be wrong with it, and a self-test would pass.
            demand(raw, f"{path}, which is empty, is not the published file: remove it, and it is fetched "
                   "again")
            for number, line in enumerate(io.BytesIO(raw)):
                if len(items) == end:
                    break
                with explained(f"{path}, line {number + 1}: not the published file; remove it, and it is "
                               "fetched again", UserError):
                    items.append(make(name, number, Row(json_object(line))))
    return items, hashes
