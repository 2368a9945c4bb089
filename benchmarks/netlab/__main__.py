"""`python -m benchmarks.netlab run|torch|goodput|clean`."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from collections.abc import Sequence

from benchmarks.netlab import Distance, Netlab, NetlabError, RunResult, clean

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.netlab", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name, text in (
        ("run", "run a job through casyncrun"),
        ("torch", "run a script once per host, as torchrun would"),
    ):
        command = commands.add_parser(name, help=text)
        _lab_options(command)
        if name == "run":
            command.add_argument("--np", type=int, help="ranks (default: one per host)")
            command.add_argument(
                "--casyncrun-args", action="append", default=[], metavar="ARG", help="one more argument of casyncrun"
            )
        command.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
        command.add_argument("--timeout", type=float, default=600.0, metavar="S")
        command.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    goodput = commands.add_parser("goodput", help="what one TCP stream carries between two hosts")
    _lab_options(goodput)
    goodput.add_argument("--seconds", type=float, default=2.0)
    commands.add_parser("clean", help="remove what crashed labs left")
    return parser


def _lab_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hosts", type=int, default=4, help="hosts of the lab (default: 4)")
    parser.add_argument("--rate", default="1gbit", help="each link's rate as tc writes it, or `none` (default: 1gbit)")
    parser.add_argument("--rtt", type=float, metavar="MS", help="round trip between hosts, which are distant then")
    parser.add_argument(
        "--loss", type=float, default=0.0, metavar="P", help="part of the packets that is lost, with --rtt"
    )


def _report(result: RunResult) -> str:
    lines = [f"{'host':<8}{'sent bytes':>16}{'received bytes':>18}"]
    lines += [f"{name:<8}{c.tx_bytes:>16,}{c.rx_bytes:>18,}" for name, c in result.counters.items()]
    ended = "timed out" if result.timed_out else f"status {result.status}"
    return "\n".join([*lines, f"{ended} after {result.seconds:.2f} s"]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    given = _parser().parse_args(argv)
    logging.basicConfig(format="netlab: %(message)s")
    # Without a handler SIGTERM would end this process before the lab is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _command(given)
    except NetlabError as error:
        sys.stderr.write(f"netlab: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


def _command(given: argparse.Namespace) -> int:
    if given.what == "clean":
        sys.stdout.write("".join(f"removed {name}\n" for name in clean()))
        return 0
    try:
        distance = Distance.of(given.rtt, given.loss)
    except ValueError as error:
        raise NetlabError(str(error)) from None
    with Netlab(given.hosts, None if given.rate == "none" else given.rate, distance) as lab:
        if given.what == "goodput":
            sys.stdout.write(f"{lab.goodput(seconds=given.seconds) / 1e6:.1f} Mbit/s\n")
            return 0
        command = given.command[1:] if given.command[:1] == ["--"] else given.command
        if not command:
            raise NetlabError("no command to run")
        env = dict(item.split("=", 1) for item in given.env)
        if given.what == "torch":
            result = lab.run_torch(command, env, timeout=given.timeout, capture=False)
        else:
            result = lab.run(
                given.np or given.hosts,
                command,
                env,
                timeout=given.timeout,
                capture=False,
                casyncrun_args=given.casyncrun_args,
            )
        sys.stdout.flush()
        sys.stderr.write(_report(result))
        return 1 if result.timed_out else result.status if result.status >= 0 else 128 - result.status


if __name__ == "__main__":
    sys.exit(main())
