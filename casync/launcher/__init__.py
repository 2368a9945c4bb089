"""casyncrun: start a job of N ranks through Open MPI's mpirun and answer for how it ends.

`flags` is the table of all flags, `options` turns a command line into a plain value, `mpirun` (and `slurm`, inside an
allocation) turns that value and the facts of the machine into the command to run, `preflight` tries what would fail
later, `job` runs it. `ledger` decides, without clock or I/O, what a rank's exit means for the others. On each rank
`rank` stands between mpirun and the user's command. `run` is the way in from Python.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run `casyncrun`; the console script's target."""
    # Late: a rank that imports casync.rendezvous.launcher_pipe pays for nothing else.
    from casync.launcher.cli import main as run

    return run(argv)
