"""The command `casync compll`: check, format, count, translate, test and time CompLL files."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from casync.compll import typed
from casync.compll.check import check_program
from casync.compll.count import PAPER, count_lines, table
from casync.compll.cpu.emit import emit as emit_cpu
from casync.compll.cuda.emit import emit as emit_cuda
from casync.compll.fmt import format_program
from casync.compll.library import library_files
from casync.compll.parser import parse
from casync.compll.source import read_source
from casync.compll.tree import Program
from casync.errors import CasyncError

__all__ = ["build_parser", "main"]

_TARGETS = {"cpu": emit_cpu, "cuda": emit_cuda}


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = argparse.ArgumentParser(prog="casync compll", description="Compression algorithms in CompLL's language.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    checked = commands.add_parser("check", help="say what is wrong with a file, or what it sends")
    checked.add_argument("file", metavar="FILE", help="a .cll file")
    formatted = commands.add_parser("fmt", help="lay a file out in the one way there is")
    formatted.add_argument("file", metavar="FILE", help="a .cll file, changed in place")
    formatted.add_argument("--check", action="store_true", help="change nothing; status 1 if it would change")
    shown = commands.add_parser("show", help="print the code that is generated for a file")
    shown.add_argument("file", metavar="FILE", help="a .cll file")
    shown.add_argument("--target", choices=tuple(_TARGETS), default="cpu")
    tested = commands.add_parser("test", help="try everything a codec promises")
    timed = commands.add_parser("bench", help="how fast a codec is on one core, beside a copy of the gradient")
    for command in (tested, timed):
        command.add_argument("spec", metavar="FILE", help="a .cll file or a codec's name, with parameters or without")
    timed.add_argument("--mib", type=_positive, default=256, help="size of the gradient, larger than the caches (256)")
    counted = commands.add_parser("count", help="lines of logic and of functions, beside table 5 of the paper")
    counted.add_argument("files", nargs="*", metavar="FILE", help="files to count (default: the library)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `casync compll`; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.command == "check":
            return _check(arguments.file)
        if arguments.command == "fmt":
            return _format(Path(arguments.file), arguments.check)
        if arguments.command == "show":
            return _show(Path(arguments.file), arguments.target)
        if arguments.command == "test":
            return _test(arguments.spec)
        if arguments.command == "bench":
            return _bench(arguments.spec, arguments.mib)
        return _count(arguments.files)
    except (CasyncError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1


def _read(path: str | Path) -> Program:
    return parse(read_source(path), str(path))


def _check(path: str) -> int:
    codec = check_program(_read(path))
    sys.stdout.write(f"{path}: {_summary(codec)}\n")
    if codec.decode is None:
        sys.stdout.write("    no decode: it can be encoded with, and is no codec yet\n")
    return 0


def _show(path: Path, target: str) -> int:
    sys.stdout.write(_TARGETS[target](check_program(_read(path)), path.stem))
    return 0


def _summary(codec: typed.Codec) -> str:
    items = ", ".join(f"{item.type}{' behind their count' if item.counted else ''}" for item in codec.payload)
    size = "fixed size" if codec.fixed_size else "bounded size"
    return f"{' then '.join(codec.properties.rounds)}; feedback {codec.properties.feedback}; {size}: {items}"


def _test(spec: str) -> int:
    from rich.console import Console

    from casync.compll.conformance.checks import CHECKS
    from casync.compll.conformance.isolation import isolated
    from casync.compll.conformance.report import heading, report
    from casync.compll.conformance.subject import open_subject
    from casync.compll.conformance.trial import Result

    subject = open_subject(spec)
    sys.stdout.write(f"{heading(subject.make().info)}\n")
    sys.stdout.flush()
    cuda = Result("cuda", None, "its code runs on a GPU, and no check does that yet")
    results = itertools.chain((isolated(check, subject) for check in CHECKS), [cuda])
    return 0 if report(Console(highlight=False), results) else 1


def _bench(spec: str, mib: int) -> int:
    from casync import _core
    from casync.compll.bench import measure
    from casync.compll.plugin import resolve

    codec = _core.Codec(resolve(spec))
    best = _core.isa()
    sys.stdout.write(f"{codec.info.spec}, one core, a gradient of {mib} MiB; medians, ratios to its copy in memory\n")
    try:
        for isa in reversed(_core.isas()):
            _core.force_isa(isa)
            for row in measure(codec, mib):
                sys.stdout.write(f"{isa:<10}{row.operation:<22}{row.speed:7.2f} GiB/s{row.to_copy:8.2f}\n")
                sys.stdout.flush()
    finally:
        _core.force_isa(best)
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def _format(path: Path, only_check: bool) -> int:
    program = _read(path)
    text = format_program(program)
    if text == program.text:
        return 0
    if only_check:
        sys.stderr.write(f"{path}: not formatted; run `casync compll fmt {path}`\n")
        return 1
    beside = path.with_name(f"{path.name}.formatted")  # a full disk must not cost the file
    try:
        beside.write_text(text, encoding="utf-8")
        shutil.copymode(path, beside)
        beside.replace(path.resolve())
    finally:
        beside.unlink(missing_ok=True)
    return 0


def _count(files: Sequence[str]) -> int:
    paths = [Path(file) for file in files] or list(library_files().values())
    counts = [(path.stem, count_lines(_read(path))) for path in paths]
    sys.stdout.write("".join(f"{line}\n" for line in table(counts)))
    return int(any(name in PAPER and not count.within(PAPER[name]) for name, count in counts))
