"""The command `casync plan`: read a plan file, print what it says."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from casync.plan.plans import PlanError, read_plans
from casync.plan.show import explanations, summary, table

__all__ = ["build_parser", "plan_main"]


def build_parser() -> argparse.ArgumentParser:
    """The parser, from which the manual is made as well."""
    parser = argparse.ArgumentParser(prog="casync plan", description="What a synchronisation plan says, and why.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    show = commands.add_parser("show", help="a table: each gradient's codec, partitions and route")
    explain = commands.add_parser("explain", help="the planner's reason for each gradient")
    for command in (show, explain):
        command.add_argument("file", metavar="FILE", help="a plan file (JSON)")
        command.add_argument("--match", default="", metavar="TEXT", help="only gradients whose name contains TEXT")
    return parser


def plan_main(argv: Sequence[str]) -> int:
    """Run `casync plan`; returns its exit status."""
    arguments = build_parser().parse_args(argv)
    try:
        read = read_plans(arguments.file)
    except (PlanError, OSError) as error:
        sys.stderr.write(f"casync plan: {error}\n")
        return 1
    plans = {name: plan for name, plan in read.items() if arguments.match in name}
    lines = [*table(plans), "", summary(plans)] if arguments.command == "show" else explanations(plans)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0
