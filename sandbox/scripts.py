"""Runs a whole program of a benchmark in its child. It gets standard input and output, and stand-ins for four
calls that the walls refuse but that programs of contests make. The walls know nothing of this file: a program
that undoes the stand-ins meets the same refusals as any other.
"""
import ast
import atexit
import builtins
import os
import sys
import types


def give_streams(job: int, start: int) -> None:
    """Makes a job's file, from this byte on, standard input, and a new file standard output. Called before
    the filter is up."""
    os.lseek(job, start, os.SEEK_SET)
    os.dup2(job, 0)
    printed = os.memfd_create("printed")
    os.dup2(printed, 1)
    os.close(printed)


def size_of(fd: int) -> types.SimpleNamespace:
    """Stands in for os.fstat, and tells the bytes that are left alone: the C library's call would name a
    path."""
    here = os.lseek(fd, 0, os.SEEK_CUR)
    size = os.lseek(fd, 0, os.SEEK_END) - here
    os.lseek(fd, here, os.SEEK_SET)
    return types.SimpleNamespace(st_size=size)


def open_by_name(file: object, *args: object, own_open: object = open, **options: object) -> object:
    """Stands in for open: standard input also has a name."""
    return own_open(0 if file == "/dev/stdin" else file, *args, **options)


def compiled(code: str) -> types.CodeType:
    """Returns the program's code. Where it does not compile it is tried as the body of a function, in which
    `return` ends it: LiveCodeBench runs all programs so."""
    try:
        return compile(code, "<program>", "exec", dont_inherit=True)
    except SyntaxError:
        wrapped = ast.parse("def program(): pass\nprogram()")
        wrapped.body[0].body = ast.parse(code).body
        return compile(wrapped, "<program>", "exec", dont_inherit=True)


def run_whole(code: str) -> str:
    """Runs a whole program and returns what it printed. What it raises goes on to the caller, but
    SystemExit: who calls exit() at the end has answered."""
    import threading  # not above: the fork server of training leaves it out, for speed
    os.fstat = size_of
    builtins.open = open_by_name
    builtins.exit = builtins.quit = sys.exit
    threading.Thread.start = lambda thread: thread.run()        # a thread runs to its end at once
    threading.Thread.join = lambda thread, timeout=None: None
    module = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        exec(compiled(code), module.__dict__)
    except SystemExit:
        pass
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os.lseek(1, 0, os.SEEK_SET)
    with open(1, "rb", closefd=False) as printed:
        return printed.read().decode("utf-8", "replace")
