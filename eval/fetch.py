"""The published benchmark files: where they are, what they hash to, and how they are found on this machine.

    python -m eval.fetch                          # seven mathematics sets, HumanEval+, MBPP+ into the cache
    python -m eval.fetch livecodebench5           # the fifth file of LiveCodeBench alone (558 MB)
    python -m eval.fetch livecodebench            # release_v5: its first five files (4.4 GB)
    python -m eval.fetch mmlu                     # MMLU's archive (166 MB)

Hashes are SHA-256 of the contents, decompressed (gzip differs from packer to packer). A file of the cache
whose hash is not known beforehand is trusted on first use: its hash is printed, kept in the cache's
sha256.json, and compared from then on. `--data DIR` of the other commands takes files already there; those
may be other editions, so a difference is said, not refused.
"""
import argparse
import gzip
import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

CACHE = Path("~/.cache/nanopopulora").expanduser()
SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")
QWEN = "https://raw.githubusercontent.com/QwenLM/Qwen2.5-Math/main/evaluation/data"
PRIME = "https://raw.githubusercontent.com/PRIME-RL/PRIME/18ad596f08d487bb546d80d738d99ec697bd2e75/eval/data"
HUB = "https://huggingface.co/datasets"
GSM8K = ("https://raw.githubusercontent.com/openai/grade-school-math/"
         "3101c7d5072418e28b9008a6636bde82a006892c/grade_school_math")
MMLU = f"{HUB}/cais/mmlu/resolve/c30699e8356da336a370243923dbaf21066bb9fe"
LCB = f"{HUB}/livecodebench/code_generation_lite/resolve/0fe84c3912ea0c4d4a78037083943e8f0c4dd505"


@dataclass(frozen=True)
class Published:
    """One published file: address, SHA-256 of what lies there ("": trusted on first use), number of rows.

    names: what it is called on disk, in lower case without punctuation and without a final "test".
    editions: hashes of other editions in circulation.
    """
    url: str
    sha256: str
    n_rows: int
    names: tuple[str, ...]
    editions: tuple[str, ...] = ()


FILES = {
    "humaneval+": Published(
        "https://github.com/evalplus/humanevalplus_release/releases/download/v0.1.10/HumanEvalPlus.jsonl.gz",
        "42526ec0e7d5f3ee0b06d6ced98f8c8bae3d76519151bfb3d36f79010645bd7f", 164,
        ("humanevalplus", "humanevalplusv0110")),
    "mbpp+": Published(
        "https://github.com/evalplus/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz",
        "b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad", 378,
        ("mbppplus", "mbppplusv020")),
    "aime24": Published(
        f"{QWEN}/aime24/test.jsonl", "", 30, ("aime24", "aime2024"),
        ("af2b8bd2aa911b6333ad0df32f3ca05c7ae8ed10f1731f4372c8ae26990bf7ac",)),
    "aime25": Published(
        f"{HUB}/math-ai/aime25/resolve/563bb8404243c5f09de6ec262f2db674fe5bce9b/test.jsonl",
        "b4e273c02d3e7fe1b74b59eae768fc8230bfb0f79539890cb56f4361caac0331", 30, ("aime25", "aime2025")),
    "amc23": Published(
        f"{QWEN}/amc23/test.jsonl", "", 40, ("amc23", "amc2023"),
        ("43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4",)),
    "math500": Published(
        f"{HUB}/HuggingFaceH4/MATH-500/resolve/6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be/test.jsonl",
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132", 500, ("math500",)),
    "minerva": Published(
        f"{PRIME}/minerva_math/test.jsonl",
        "0e656b430d3a0a1dab6aa853f453ba3805e28e2cabe4fc72486a897cc09d8ba2", 272,
        ("minerva", "minervamath", "ocwcourses")),
    "gsm8k": Published(
        f"{GSM8K}/data/test.jsonl", "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14", 1319,
        ("gsm8k", "gradeschoolmath"), ("9f098df7ff4522078d6ccec27a5c38a454790fdb51131bedfaa0e490070d5394",)),
    "olympiadbench": Published(
        f"{PRIME}/olympiadbench/test.jsonl",
        "bb8c1e38a16ea9eacb77530315a674d883f267fbff79183effc53681b4fcc416", 675,
        ("olympiadbench", "olympiad", "oetomathsencomp", "olympiadbenchoetomathsencomp")),
    "mmlu": Published(              # the authors' copy of people.eecs.berkeley.edu/~hendrycks/data.tar
        f"{MMLU}/data.tar", "bec563ba4bac1d6aaf04141cd7d1605d7a5ca833e38f994051e818489592989b", 14042,
        ("mmlu",)),
    "livecodebench1": Published(
        f"{LCB}/test.jsonl", "2bd02b38beb48e8c46b5b9987095d999ff38cd8efc255ea5d58974317c48f63f", 400,
        ("test", "codegenerationlite", "livecodebench1"))}
LCB_LATER = [("095df7c5daf15f882c51a9deb84085cff1e073495a5dbcf95015a564d485f3a3", 111),
             ("28ed26cc83363ce3f1fe2d5fad9f8393077beb1907b167a31bd3b32f80801b79", 101),
             ("d711138ddaebfcf5f8ec6a4283ee677298c0f5c5d374a235af92aaf0584510da", 101),
             ("7f77571c2a6df0c2a72a3277650309f67e01e0008e18117e624633df53f81214", 167)]
for i, hash_and_rows in enumerate(LCB_LATER, 2):
    names = (f"test{i}", f"livecodebench{i}")
    FILES[f"livecodebench{i}"] = Published(f"{LCB}/test{i}.jsonl", *hash_and_rows, names)
GROUPS = {"livecodebench": [name for name in FILES if "livecode" in name],
          "small": [name for name in FILES if "livecode" not in name and name != "mmlu"]}


def cached_name(name: str) -> str:
    """File name in the cache."""
    endings = {".gz": ".jsonl.gz", ".tar": ".tar"}
    return name.replace("+", "plus") + endings.get(Path(FILES[name].url).suffix, ".jsonl")


def stem(path: Path, root: Path) -> str:
    """By which of Published.names a file is known: its own, or its folder's for test or train."""
    name = plain(re.sub(r"\.jsonl?(\.gz)?$", "", path.name))
    if name in ("test", "train", "data") and path.parent != root:
        name = plain(path.parent.name)
    return name if name == "test" else name.removesuffix("test")


def plain(text: str) -> str:
    """Lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", text.lower())


def here(data: str | Path) -> dict[str, Path]:
    """The published files in a directory or one folder below, by name. Raises ValueError for no directory."""
    root = Path(data).expanduser()
    if not root.is_dir():
        raise ValueError(f"--data {data}: no such directory; give the one that holds the published files, or "
                         "leave --data out and run python -m eval.fetch")
    known = {alias: name for name, published in FILES.items() for alias in published.names}
    found = {}
    for path in (*sorted(root.glob("*")), *sorted(root.glob("*/*"))):
        name = known.get(stem(path, root))
        if name and path.name.endswith(SUFFIXES) and path.is_file():
            found.setdefault(name, path)
    return found


def at_hand(data: str | Path | None) -> set[str]:
    """Names of the files that `data` holds, or the cache where it is None. Raises ValueError as `here`."""
    if data is not None:
        return set(here(data))
    return {name for name in FILES if (CACHE / cached_name(name)).exists()}


def opened(path: Path):
    """The file's bytes, decompressed if its first two say gzip."""
    with open(path, "rb") as f:
        packed = f.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rb") if packed else open(path, "rb")


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


def locate(name: str, data: str | Path | None = None, cache: Path = CACHE) -> tuple[Path, str]:
    """Path and SHA-256 of a published file in `data`, else in the cache, where it must be the very file.

    Raises ValueError that says which file, what was expected and how to get it.
    """
    published = FILES[name]
    if data is not None:
        found = here(data)
        if name not in found:
            raise ValueError(f"--data {data} holds no file of {name}: expected {published.names[0]}.jsonl, "
                             ".jsonl.gz, .json or a folder of that name with test.jsonl; it is published at "
                             f"{published.url}")
        sha = digest(found[name])
        known = [h for h in (published.sha256, *published.editions) if h]
        if sha not in known:
            print(f"note: {found[name]} is not an edition of {name} that we know (SHA-256 {sha}, known: "
                  f"{', '.join(known)})", file=sys.stderr)
        return found[name], sha
    path = cache / cached_name(name)
    if not path.exists():
        raise ValueError(f"{name} is not in {cache}: run python -m eval.fetch {name}, or download "
                         f"{published.url} yourself and pass --data DIR")
    sha, kept = digest(path), trusted(cache)
    expected = published.sha256 or kept.get(name)
    if expected and sha != expected:
        raise ValueError(f"{path} has SHA-256 {sha}, expected {expected}: it is damaged or was changed; "
                         f"remove it and run python -m eval.fetch {name}")
    if not expected:
        print(f"{name}: no hash is known beforehand; SHA-256 {sha} is trusted from now on", file=sys.stderr)
        (cache / "sha256.json").write_text(json.dumps({**kept, name: sha}, indent=1) + "\n")
    return path, sha


def trusted(cache: Path) -> dict[str, str]:
    """Hashes that were trusted on first use."""
    path = cache / "sha256.json"
    return json.loads(path.read_text()) if path.exists() else {}


def rows(path: Path) -> Iterator[dict]:
    """Objects of a JSON-lines file, or of a JSON list (perhaps under one key). Raises ValueError."""
    complaint = "the file is damaged or not the published one: fetch it again (python -m eval.fetch)"
    try:
        with opened(path) as f:
            if path.name.removesuffix(".gz").endswith(".json"):
                whole = json.load(f)
                inside = list(whole.values()) if isinstance(whole, dict) else [whole]
                lists = [value for value in inside if isinstance(value, list)]
                if len(lists) != 1:
                    raise ValueError(f"{path}: expected a list of objects; {complaint}")
                lines = lists[0]
            else:
                lines = (line for line in f if line.strip())
            for number, line in enumerate(lines, 1):
                row = json.loads(line) if isinstance(line, bytes) else line
                if not isinstance(row, dict):
                    raise ValueError(f"{path}, row {number}: expected an object, found {type(row).__name__}; "
                                     f"{complaint}")
                yield row
    except json.JSONDecodeError as e:
        raise ValueError(f"{path} is not valid JSON ({e}); {complaint}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as e:
        raise ValueError(f"{path} cannot be read ({e}); {complaint}") from None


def fetch(name: str, cache: Path = CACHE) -> Path:
    """Download a file into the cache, unless it is there, and check it. Raises ValueError."""
    published, path = FILES[name], cache / cached_name(name)
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        try:
            with urllib.request.urlopen(published.url, timeout=60) as source, open(part, "wb") as f:
                n_bytes = int(source.headers.get("Content-Length") or 0)
                bar = tqdm(total=n_bytes, unit="B", unit_scale=True, desc=name)
                while block := source.read(1 << 20):
                    f.write(block)
                    bar.update(len(block))
        except (urllib.error.URLError, OSError) as e:
            part.unlink(missing_ok=True)
            put = "unpack it" if path.suffix == ".tar" else f"put it as {published.names[0]}.jsonl"
            raise ValueError(f"{name} could not be fetched from {published.url} ({e}): download it "
                             f"elsewhere, {put} into a directory and pass --data DIR") from None
        sha = digest(part)
        if published.sha256 and sha != published.sha256:
            part.unlink()
            raise ValueError(f"{published.url} gave a file with SHA-256 {sha}, expected {published.sha256}: "
                             "the download was cut off or the file has changed; try again, or pass --data "
                             "DIR with the edition you trust")
        part.replace(path)
    locate(name, cache=cache)
    return path


def main(argv: list[str] | None = None) -> None:
    """The command line. Raises ValueError for an unknown name or a failed download."""
    valid = ", ".join([*FILES, *GROUPS])
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m eval.fetch", description=__doc__, formatter_class=form)
    parser.add_argument("names", nargs="*", default=["small"], help=f"of {valid}; default: small")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"default {CACHE}")
    args = parser.parse_args(argv)
    wanted = []
    for name in args.names:
        if name not in FILES and name not in GROUPS:
            raise ValueError(f"{name}: no such benchmark; valid: {valid}")
        wanted += GROUPS.get(name, [name])
    for name in dict.fromkeys(wanted):
        print(f"{name}: {fetch(name, args.cache)}")


if __name__ == "__main__":
    try:
        main()
    except ValueError as e:
        print(f"eval.fetch: {e}", file=sys.stderr)
        sys.exit(2)
