"""Holds what trainer and fork server agree on: what programs may have, and the messages between the two."""
import struct
from dataclasses import dataclass

from sandbox.values import MAX_TEXT

GO = struct.Struct("<III")     # to the fork server: bytes of the job, CPU ms, wall ms
DONE = struct.Struct("<iI")     # from it: wait status, one of the next line
ON_TIME, LATE, STARVED = 0, 1, 2  # the wall clock ended the child: it slept, or it waited for a processor

# What a program may import. All else raises ModuleNotFoundError, which names it, because no file can be
# opened in there. Every page of a module costs each fork time, so training gets what tasks/programs.py
# allows, and benchmarks get what people import.
TRAIN = tuple("""math itertools functools collections collections.abc string re heapq bisect operator copy
fractions decimal statistics typing dataclasses random abc types enum numbers contextlib keyword unicodedata
warnings time sys os builtins __future__""".split())
EVAL = TRAIN + tuple("""cmath json datetime textwrap hashlib base64 struct array calendar _strptime zlib
binascii pprint ast traceback io inspect reprlib weakref threading queue secrets uuid timeit difflib
html csv shlex graphlib doctest unittest unittest.mock pickle pathlib tempfile logging locale argparse
platform subprocess urllib.parse urllib.request urllib.error asyncio socket selectors select signal
xml.etree.ElementTree xml.dom.minidom xml.sax.saxutils gzip bz2 lzma zipfile tarfile zoneinfo
concurrent.futures concurrent.futures.thread concurrent.futures.process multiprocessing
multiprocessing.pool sched errno stat glob fnmatch shutil getpass getopt optparse configparser fileinput
codecs copyreg gc dis tokenize token linecache sqlite3 http.client html.parser email.message ipaddress
colorsys contextvars importlib ctypes mmap resource marshal tracemalloc cProfile pstats stringprep
mimetypes encodings.ascii encodings.latin_1 encodings.utf_16 encodings.utf_16_le encodings.utf_32
encodings.utf_8_sig encodings.cp1252 encodings.unicode_escape encodings.hex_codec encodings.rot_13
encodings.shift_jis encodings.idna""".split())
# Not of the standard library; EvalPlus and LiveCodeBench have it. What numpy imports late is named too.
NUMPY = tuple("""numpy numpy.linalg numpy.random numpy.fft numpy.polynomial numpy.ma numpy.lib.recfunctions
numpy.typing""".split())


@dataclass(frozen=True)
class Profile:
    """Says what programs of one use may have; the walls are the same in all. To read a report as long as
    max_file, all of it nested lists, costs the trainer 0.2 s and 10 MB in training, 10 s and 0.5 GB in
    evaluation."""
    imports: tuple
    packages: tuple = ()            # as imports, from where the trainer has them; left out where it has none
    cpu_s: float = 0.5              # CPU seconds of one child
    wall_s: float = 6.0             # backstop for a child that sleeps
    mem_mb: int = 256               # address space beyond the interpreter's own
    stack_mb: int = 8               # of which C functions that call back, such as lru_cache, take most
    max_job: int = 1 << 20          # characters of a job
    max_text: int = MAX_TEXT        # characters of one value
    max_file: int = 1 << 18         # bytes that one child may report


# HumanEval+ and MBPP+ have expected values of up to a gigabyte; without those beyond a million characters all
# that a program returns for a problem's base or plus inputs fits into one report.
PROFILES = {"train": Profile(TRAIN),
            "eval": Profile(EVAL, NUMPY, cpu_s=6.0, wall_s=20.0, mem_mb=4096, stack_mb=512, max_job=1 << 26,
                            max_text=1 << 23, max_file=12 << 20)}
