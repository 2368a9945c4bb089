"""The command `casync compll`: check, format, count and translate CompLL files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from casync.compll import typed
from casync.compll.check import check_program
from casync.compll.count import PAPER, count_lines, table
from casync.compll.cpu.emit import emit
from casync.compll.diagnostics import CompllError
from casync.compll.fmt import format_program
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.tree import Program
from casync.errors import NotAvailableError

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="casync compll", description="Compression algorithms in CompLL's language.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checked = commands.add_parser("check", help="say what is wrong with a file, or what it sends")
    checked.add_argument("file", metavar="FILE", help="a .cll file")
    formatted = commands.add_parser("fmt", help="lay a file out in the one way there is")
    formatted.add_argument("file", metavar="FILE", help="a .cll file, changed in place")
    formatted.add_argument("--check", action="store_true", help="change nothing; status 1 if it would change")
    shown = commands.add_parser("show", help="print the code that is generated for a file")
    shown.add_argument("file", metavar="FILE", help="a .cll file")
    shown.add_argument("--target", choices=("cpu", "cuda"), default="cpu")
    counted = commands.add_parser("count", help="lines of logic and of functions, beside table 5 of the paper")
    counted.add_argument("files", nargs="*", metavar="FILE", help="files to count (default: the library)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `casync compll`; returns its exit status."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "check":
            return _check(arguments.file)
        if arguments.command == "fmt":
            return _format(Path(arguments.file), arguments.check)
        if arguments.command == "show":
            return _show(Path(arguments.file), arguments.target)
        return _count(arguments.files)
    except (CompllError, NotAvailableError, OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _read(path: str | Path) -> Program:
    return parse(Path(path).read_text(encoding="utf-8"), str(path))


def _check(path: str) -> int:
    codec = check_program(_read(path))
    sys.stdout.write(f"{path}: {_summary(codec)}\n")
    if codec.decode is None:
        sys.stdout.write("    no decode: it can be encoded with, and is no codec yet\n")
    return 0


def _show(path: Path, target: str) -> int:
    if target == "cuda":
        raise NotAvailableError("code for CUDA is not there yet; there is --target cpu")
    sys.stdout.write(emit(check_program(_read(path)), path.stem))
    return 0


def _summary(codec: typed.Codec) -> str:
    items = ", ".join(f"{item.type}{' behind their count' if item.counted else ''}" for item in codec.payload)
    size = "fixed size" if codec.fixed_size else "bounded size"
    return f"{' then '.join(codec.properties.rounds)}; feedback {codec.properties.feedback}; {size}: {items}"


def _format(path: Path, only_check: bool) -> int:
    program = _read(path)
    text = format_program(program)
    if text == program.text:
        return 0
    if only_check:
        sys.stderr.write(f"{path}: not formatted; run `casync compll fmt {path}`\n")
        return 1
    path.write_text(text, encoding="utf-8")
    return 0


def _count(files: Sequence[str]) -> int:
    paths = [Path(file) for file in files] or list(library_files().values())
    counts = [(path.stem, count_lines(_read(path))) for path in paths]
    sys.stdout.write("".join(f"{line}\n" for line in table(counts)))
    return int(any(name in PAPER and not count.within(PAPER[name]) for name, count in counts))
