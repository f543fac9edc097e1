"""The published benchmark files: where they are, what they hash to, and how they are read.

    python -m eval.fetch                          # seven mathematics sets, HumanEval+, MBPP+ into the cache
    python -m eval.fetch livecodebench5           # the fifth file of LiveCodeBench alone (558 MB)
    python -m eval.fetch livecodebench            # release_v5: its first five files (4.4 GB)
    python -m eval.fetch mmlu                     # MMLU's archive (166 MB)

A benchmark is one file: NAME.jsonl, perhaps with .gz, as published (mmlu.tar; HumanEvalPlus.jsonl and
MbppPlus.jsonl for humaneval+ and mbpp+), in --data DIR of every command. Hashes are SHA-256 of the contents,
decompressed; a file of another hash is used, and a note says so.
"""
import argparse
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

CACHE = Path("~/.cache/nanopopulora").expanduser()


@dataclass(frozen=True)
class Published:
    """One published file: its name on the disk, address, number of rows, SHA-256 of the editions we know."""
    file: str
    url: str
    n_rows: int
    sha256: list[str]


TABLE = Path(__file__).with_name("published.json")
FILES = {name: Published(**row) for name, row in json.loads(TABLE.read_text()).items()}
# Sets of several files, and what is fetched where nothing is named.
GROUPS = {"livecodebench": [name for name in FILES if "livecode" in name],
          "small": [name for name in FILES if "livecode" not in name and name != "mmlu"]}


def place(name: str, data: str | Path) -> Path | None:
    """Where a benchmark's file lies; None where it does not."""
    path = Path(data).expanduser() / FILES[name].file
    packed = path.with_name(f"{path.name}.gz")
    return next((p for p in (path, packed) if p.is_file()), None)


def present(names: tuple[str, ...], data: str | Path) -> list[str]:
    """Those of some benchmarks whose files are all there. Raises ValueError where there is none."""
    found = [name for name in names if all(place(part, data) for part in GROUPS.get(name, [name]))]
    if not found:
        raise ValueError(f"none of {', '.join(names)} is in {data}: run python -m eval.fetch, or say with "
                         "--data where they are")
    return found


def opened(path: Path):
    """The file's bytes, decompressed where its name says so."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def digest(path: Path) -> str:
    """SHA-256 of the contents, decompressed. Raises ValueError for a damaged gzip file."""
    sha = hashlib.sha256()
    try:
        with opened(path) as f:
            while block := f.read(1 << 20):
                sha.update(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise ValueError(f"{path} is a damaged gzip file ({e}): remove it and fetch it again "
                         "(python -m eval.fetch)") from None
    return sha.hexdigest()


def locate(name: str, data: str | Path) -> tuple[Path, str]:
    """Path and SHA-256 of a benchmark's file. Raises ValueError that says how to get it."""
    path, known = place(name, data), FILES[name]
    if path is None:
        raise ValueError(f"{known.file} is not in {data}: run python -m eval.fetch {name}, or download "
                         f"{known.url} under that name and pass --data DIR")
    sha = digest(path)
    if sha not in known.sha256:
        print(f"note: {path} is not an edition of {name} that we know (SHA-256 {sha})", file=sys.stderr)
    return path, sha


def load(name: str, data: str | Path, make: Callable, limit: int = 0) -> tuple[list, str]:
    """make(name, number, row) of the rows of a file of JSON lines, the first `limit` (0 = all), and its hash.

    Raises ValueError for a file that is not there, damaged, or another one.
    """
    path, sha = locate(name, data)
    out = []
    with opened(path) as f:
        for number, line in enumerate(f):
            try:
                out.append(make(name, number, json.loads(line)))
            except (ValueError, LookupError, TypeError, AttributeError) as e:
                raise ValueError(f"{path}, line {number + 1}: {type(e).__name__} {e}: not the published "
                                 f"file; fetch it again (python -m eval.fetch {name})") from None
            if len(out) == limit:
                return out, sha
    if len(out) != FILES[name].n_rows:
        print(f"note: {path} holds {len(out)} questions, {name} as published has {FILES[name].n_rows}",
              file=sys.stderr)
    return out, sha


def fetch(name: str, data: str | Path) -> Path:
    """Download a file unless it is there, and check it. Raises ValueError."""
    if path := place(name, data):
        return path
    from torch.hub import download_url_to_file
    known = FILES[name]
    path = Path(data).expanduser() / (known.file + ".gz" * known.url.endswith(".gz"))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        download_url_to_file(known.url, str(path))
    except (URLError, OSError) as e:
        raise ValueError(f"{name} could not be fetched from {known.url} ({e}): download it elsewhere and put "
                         f"it there as {path}") from None
    _, sha = locate(name, data)
    if sha not in known.sha256 and "/main/" not in known.url:     # where others may come, `locate` says so
        path.unlink()
        raise ValueError(f"{known.url} gave a file with SHA-256 {sha}, expected {known.sha256[0]}: the "
                         "download was cut off, or the file has changed; try again, or pass --data DIR with "
                         "the edition you trust")
    return path


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for an unknown name or a failed download."""
    valid = ", ".join([*FILES, *GROUPS])
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.fetch", description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", default=["small"], help=f"of {valid}; default: small")
    parser.add_argument("--data", type=Path, default=CACHE, help=f"where to; default {CACHE}")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.names if name not in FILES and name not in GROUPS]:
        raise ValueError(f"{unknown[0]}: no such benchmark; valid: {valid}")
    for name in dict.fromkeys(part for name in args.names for part in GROUPS.get(name, [name])):
        print(f"{name}: {fetch(name, args.data)}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as e:
        print(f"eval.fetch: {e}", file=sys.stderr)
        sys.exit(2)
