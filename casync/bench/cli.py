"""The command `casync bench`: starts ranks that measure, and says whether to compress, and with what.

casync bench -H h1:4,h2:4 --model bert-base
casync bench -H h1:4,h2:4 -- python train.py
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from casync.bench import show
from casync.bench.reference_models import MODELS
from casync.bench.units import parse_duration, parse_seconds, share
from casync.bench.ways import ShapesError, automatic, contenders, shapes_of, step_of
from casync.errors import CasyncError, JobError
from casync.launcher.flags import FLAGS
from casync.launcher.options import Options, Parser, UsageError, parse
from casync.observe.step_profile import Observation
from casync.plan.plans import write_plans
from casync.rendezvous.slurm_hosts import HostError

__all__ = ["build_parser", "main"]

_SECONDS = 150.0
_PROGRAM_SHARE = 0.6  # of them, at most, for COMMAND
_LEAST_SECONDS = 1.0  # for the rest, if COMMAND took long to end
# The flags of casyncrun that say where the ranks run and how to reach it.
_LAUNCHER = (
    "--num-proc", "--hosts", "--hostfile", "-x", "--start-timeout", "--ssh-port", "--ssh-identity-file", "--rsh-agent",
    "--network-interface", "--mpi-args", "--binding-args",
)  # fmt: skip

Shapes = Mapping[str, tuple[int, ...]]


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = Parser(
        prog="casync bench",
        usage="casync bench (-np N | -H HOSTS) [options] (--model NAME | --shapes FILE | -- COMMAND ...)",
        description="Measure with real ranks how long it takes to synchronise a model's gradients, uncompressed and "
        "with several codecs, and say in the last line whether to compress, and with what. The gradients are those of "
        "a model, of a file, or of COMMAND, which runs for some steps first.",
        epilog="Exit status: 0 with an answer, 2 for a command line that cannot be run, 130 after Ctrl-C, 1 for any "
        "other failure.",
        allow_abbrev=False,
    )
    model = parser.add_argument_group("the gradients").add_mutually_exclusive_group()
    model.add_argument("--model", choices=list(MODELS), metavar="NAME", help=", ".join(MODELS))
    model.add_argument(
        "--shapes", metavar="FILE", help='JSON: each gradient\'s shape by its name, {"fc.weight": [10, 512]}'
    )
    what = parser.add_argument_group("what is measured")
    what.add_argument(
        "--codec",
        action="append",
        default=[],
        metavar="CODEC",
        help=f"a codec beside {', '.join(contenders([]))}; may be repeated",
    )
    what.add_argument(
        "--backward",
        type=parse_seconds,
        metavar="TIME",
        help="time over which the gradients become ready, e.g. 200ms (0s: synchronisation alone); COMMAND has its own",
    )
    what.add_argument(
        "--seconds",
        type=parse_duration,
        default=_SECONDS,
        metavar="S",
        help=f"measure for about so long ({_SECONDS:g})",
    )
    what.add_argument(
        "--utilisation",
        type=share,
        metavar="U",
        help="the part of the time that a rank is to compute, e.g. 0.95: also say how often to send for that, in every "
        "step or in rounds of DiLoCo; needs --backward or COMMAND",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--json", action="store_true", help="print one JSON object in place of the table")
    out.add_argument("--plan", metavar="FILE", help="write the recommended plans, for CASYNC_PLAN_FILE")
    out.add_argument("--verbose", action="store_true", help="show what casyncrun and the ranks write")
    ranks = parser.add_argument_group("the ranks, as for casyncrun")
    for flag in _launcher_flags():
        text = flag.help.replace("%", "%%")
        ranks.add_argument(*flag.names, **{"dest": flag.dest, "default": None, **flag.arguments}, help=text)
    return parser


def _launcher_flags() -> list[Any]:
    return [flag for flag in FLAGS if flag.spelling in _LAUNCHER]


def main(argv: Sequence[str]) -> int:
    """Run `casync bench`; returns its exit status."""
    try:
        return _run(argv)
    except (UsageError, HostError) as error:
        return _failed(2, f"{error} (casync bench --help says more)")
    except KeyboardInterrupt:
        return _failed(130, "interrupted; nothing is left running")
    except (CasyncError, OSError) as error:
        return _failed(1, str(error))


def _failed(status: int, text: str) -> int:
    sys.stderr.write(f"casync bench: {text.splitlines()[0]}\n")
    return status


def _run(argv: Sequence[str]) -> int:
    flags, command = _split(argv)
    given = build_parser().parse_args(flags)
    _check(given, command)
    codecs, auto = _codecs(given.codec)
    options = _options(given, [sys.executable, "-m", "casync.launcher.task"])
    seconds = given.seconds
    if command:
        began = time.monotonic()
        program = _options(given, command)
        model, step = shlex.join(command), _observe(program, _PROGRAM_SHARE * seconds, verbose=given.verbose)
        seconds = max(_LEAST_SECONDS, seconds - (time.monotonic() - began))
    else:
        model, shapes = _gradients(given.model, given.shapes)
        step = step_of(shapes, given.backward or 0.0)
    named = {"alone": given.utilisation is not None}
    measured = _measure(options, (step, codecs, auto, seconds), named, verbose=given.verbose)
    if given.plan is not None:
        write_plans(given.plan, show.recommended(measured).plans)
    if given.json:
        sys.stdout.write(show.as_json(model, step, measured, given.utilisation) + "\n")
    else:
        from rich.console import Console

        console = Console(highlight=False, soft_wrap=True)
        show.print_table(console, show.title(model, step, measured), measured)
        if given.utilisation is not None:
            show.print_intervals(console, step, measured, given.utilisation)
    return 0


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own flags, and the command behind `--`."""
    line = list(argv)
    at = line.index("--") if "--" in line else len(line)
    return line[:at], line[at + 1 :]


def _check(given: argparse.Namespace, command: Sequence[str]) -> None:
    """Whether the parts of a command line go together."""
    named = [flag for flag, value in (("--model", given.model), ("--shapes", given.shapes)) if value is not None]
    if command and named:
        raise UsageError(f"{named[0]} is not allowed with -- COMMAND, whose own gradients are measured")
    if not command and not named:
        raise UsageError("say what the gradients are: --model NAME, --shapes FILE or -- COMMAND")
    if command and given.backward is not None:
        raise UsageError("--backward is not allowed with -- COMMAND, which shows itself when its gradients are ready")
    if given.utilisation is not None and not command and not given.backward:
        raise UsageError("--utilisation needs to know how long a step computes: give --backward TIME, or -- COMMAND")
    if given.plan is None:
        return
    if given.model is not None:
        raise UsageError(
            "--plan is not allowed with --model: the names of its gradients are made up, so no program could use the "
            "plans. --shapes FILE and -- COMMAND have your program's names"
        )
    if not Path(given.plan).resolve().parent.is_dir():
        raise UsageError(f"--plan {given.plan}: there is no folder {Path(given.plan).resolve().parent}")


def _gradients(model: str | None, file: str | None) -> tuple[str, Shapes]:
    """Return what to call the gradients together, and their shapes by name, in the order of the forward pass."""
    if file is None:
        assert model is not None
        return model, {f"{model}.{number}": shape for number, shape in enumerate(MODELS[model]())}
    try:
        return Path(file).name, shapes_of(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--shapes {file}: {error.strerror}") from None
    except (ShapesError, UnicodeDecodeError) as error:
        raise UsageError(f"--shapes {file}: {error}") from None


def _codecs(further: Sequence[str]) -> tuple[list[str], str]:
    """Return the contenders, each of which can be made, and `auto` over those of them that it may choose."""
    from casync import _core  # the compiled core, not needed for --help
    from casync.codecs.specs import codec_text, takes_momentum

    for codec in further:
        try:
            _core.check_codec(codec_text(codec))
        except CasyncError as error:
            raise UsageError(f"--codec {codec}: {error}") from None
    return contenders(further), automatic([codec for codec in further if not takes_momentum(codec_text(codec))])


def _options(given: argparse.Namespace, command: Sequence[str]) -> Options:
    from casync.launcher.slurm import allocation

    line = []
    for flag in _launcher_flags():
        value = getattr(given, flag.dest)
        for one in value if isinstance(value, list) else [value]:
            line += [] if one is None else [f"{flag.spelling}={one}"]
    verbose = ["--verbose"] if given.verbose else []
    options = parse([*line, *verbose, "--", *command], allocation(dict(os.environ)))
    if options.num_proc < 2:
        raise UsageError(f"-np {options.num_proc}: one rank has nobody to synchronise with; give at least 2")
    return options


def _observe(options: Options, limit: float, *, verbose: bool) -> Observation:
    """Run the program of `options`, and return what it does in a step."""
    from casync.bench.program import observe

    with _progress_bar() as progress, _in_one_line(verbose=verbose):
        return observe(options, os.environ, limit, _to_stderr if verbose else _nowhere, progress)


def _measure(options: Options, arguments: tuple[Any, ...], named: dict[str, Any], *, verbose: bool) -> Any:
    """Run the measurement, and return what rank 0 measured."""
    from casync.bench.measure import measure
    from casync.launcher import task
    from casync.launcher.run import results_of

    stdin = task.pack(measure, arguments, named)
    with _progress_bar() as progress, _in_one_line(verbose=verbose):
        return results_of(options, os.environ, stdin, _to_stderr if verbose else _nowhere, progress)[0]


@contextmanager
def _in_one_line(*, verbose: bool) -> Iterator[None]:
    """Raise a failed job's error without the traceback of its rank, which --verbose has shown."""
    try:
        yield
    except JobError as error:
        hint = "" if verbose or error.peer is None else "; --verbose shows what the ranks wrote"
        raise JobError(str(error).splitlines()[0] + hint) from None


def _nowhere(_stream: str, _data: bytes) -> None:
    """The ranks write nothing that belongs to the answer."""


def _to_stderr(_stream: str, data: bytes) -> None:
    os.write(2, data)


def _progress_bar() -> AbstractContextManager[Callable[[float, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    @contextmanager
    def bar() -> Any:
        console = Console(stderr=True)
        columns = (TextColumn("measuring"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeElapsedColumn())
        # Without a thread of its own: this process starts another one meanwhile.
        with Progress(*columns, TextColumn("{task.description}", markup=False), console=console, auto_refresh=False,
                      transient=True, disable=not console.is_terminal) as shown:  # fmt: skip
            number = shown.add_task("starting the ranks", total=1.0)

            def step(done: float, what: str) -> None:
                shown.update(number, completed=done, description=what, refresh=True)

            yield step

    return bar()
