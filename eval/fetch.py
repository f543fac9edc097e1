"""The published benchmark files: where they are, what they hash to, and how they are read.

    python -m eval.fetch                          # seven mathematics sets, HumanEval+, MBPP+ into the cache
    python -m eval.fetch livecodebench mmlu       # release_v5, five files (4.4 GB); MMLU's archive (166 MB)

The files lie in --data DIR of every command under the names in published.json, perhaps with .gz. Hashes are
SHA-256 of the contents, decompressed; a file of another hash is used, and a note says so.
"""
import argparse
import gzip
import hashlib
import json
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

CACHE = Path("~/.cache/nanopopulora").expanduser()
# benchmark -> its files: name on the disk, address, SHA-256 of the editions that we know
FILES = json.loads(Path(__file__).with_name("published.json").read_text())
LARGE = ("livecodebench", "mmlu")               # fetched where they are named


def place(known: dict, data: str | Path) -> Path | None:
    """Where a published file lies, perhaps packed; None where it does not."""
    path = Path(data).expanduser() / known["file"]
    return next((p for p in (path, path.with_name(f"{path.name}.gz")) if p.is_file()), None)


def present(names: tuple[str, ...], data: str | Path) -> list[str]:
    """Those of some benchmarks whose files are all there. Raises ValueError where there is none."""
    there = [name for name in names if all(place(known, data) for known in FILES[name])]
    if not there:
        raise ValueError(f"none of {', '.join(names)} is in {data}: run python -m eval.fetch, or say with "
                         "--data where they are")
    return there


def opened(path: Path):
    """The file's bytes, decompressed where its name says so."""
    return gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb")


def locate(name: str, known: dict, data: str | Path) -> tuple[Path, str]:
    """Path and SHA-256 of a benchmark's file. Raises ValueError that says how to get it."""
    path, sha = place(known, data), hashlib.sha256()
    if path is None:
        raise ValueError(f"{known['file']} is not in {data}: run python -m eval.fetch {name}, or download "
                         f"{known['url']} under that name and pass --data DIR")
    try:
        with opened(path) as f:
            while block := f.read(1 << 20):
                sha.update(block)
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise ValueError(f"{path} is a damaged gzip file ({e}): remove it and fetch it again") from None
    if sha.hexdigest() not in known["sha256"]:
        print(f"note: {path} is not an edition of {name} that we know (SHA-256 {sha.hexdigest()})",
              file=sys.stderr)
    return path, sha.hexdigest()


def load(names: list[str], data: str | Path, make: Callable, limit: int = 0) -> tuple[list, dict[str, str]]:
    """make(name, number, row) of the first `limit` (0 = all) JSON lines of each benchmark, in one list, and
    SHA-256 by file.

    Raises ValueError for a file that is not there, damaged, or another one.
    """
    items, hashes = [], {}
    for name in names:
        first = len(items)
        for known in FILES[name]:
            path, hashes[known["file"]] = locate(name, known, data)
            with opened(path) as f:
                for number, line in enumerate(f):
                    if limit and len(items) == first + limit:
                        break
                    try:
                        items.append(make(name, number, json.loads(line)))
                    except (ValueError, LookupError, TypeError, AttributeError) as e:
                        raise ValueError(f"{path}, line {number + 1}: {type(e).__name__} {e}: not the "
                                         f"published file; fetch it again (python -m eval.fetch {name})"
                                         ) from None
    return items, hashes


def fetch(name: str, known: dict, data: Path) -> Path:
    """Download a file unless it is there. Raises ValueError where it cannot be had, or is another one."""
    from torch.hub import download_url_to_file
    if path := place(known, data):
        return path
    path = data.expanduser() / (known["file"] + ".gz" * known["url"].endswith(".gz"))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        download_url_to_file(known["url"], str(path))
    except OSError as e:
        raise ValueError(f"{name} could not be fetched from {known['url']} ({e}): download it elsewhere and "
                         f"put it there as {path}") from None
    if locate(name, known, data)[1] not in known["sha256"]:
        path.unlink()
        raise ValueError(f"{known['url']} gave another file than we know: the download was cut off, or the "
                         "file has changed; try again, or pass --data DIR with the edition you trust")
    return path


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for an unknown name or a failed download."""
    form, valid = argparse.RawDescriptionHelpFormatter, ", ".join(FILES)
    parser = argparse.ArgumentParser(prog="python -m eval.fetch", description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", help=f"of {valid}; default: all but {', '.join(LARGE)}")
    parser.add_argument("--data", type=Path, default=CACHE, help=f"where to; default {CACHE}")
    args = parser.parse_args(argv)
    for name in args.names or [name for name in FILES if name not in LARGE]:
        if name not in FILES:
            raise ValueError(f"{name}: no such benchmark; valid: {valid}")
        for known in FILES[name]:
            print(f"{name}: {fetch(name, known, args.data)}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as e:
        sys.exit(f"eval.fetch: {e}")
