"""What the launcher decides about a running job. Pure: no clock, no I/O, so tests call it with literals.

The job feeds it what happened and the time; it answers with what to do:

    ledger = Ledger(size=4, policy=Policy())
    ledger.exited(2, -9, now=1.0)        # [Release(2), Say(...)]
    ledger.tick(now=16.0)                # [Kill(0, "rank 2 ..."), ...]
    ledger.verdict().text                # "rank 2 on host h2 was killed by SIGKILL"

Rules. The first rank that failed is the one whose failure was heard of first: its own word (`failing`), its exit, or
the loss of its wrapper. After it, ranks that reported `initialized` have `grace` seconds to leave by themselves, the
others `init_grace`, since MPI_Init cannot notice a dead peer. When all ranks have ended, mpirun has `end_grace`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

__all__ = [
    "Action",
    "EndMpirun",
    "Kill",
    "Ledger",
    "Policy",
    "Rank",
    "Release",
    "Say",
    "Signal",
    "Start",
    "Verdict",
    "how",
]


@dataclass(frozen=True)
class Policy:
    """Durations in seconds; `hold` keeps a failed rank's wrapper alive, for an mpirun that would kill the others.

    `starter` is what the texts call the program that starts the ranks: mpirun or srun.
    """

    start_timeout: float = 60.0
    grace: float = 15.0
    init_grace: float = 5.0
    interrupt_grace: float = 5.0
    end_grace: float = 3.0
    hold: bool = False
    starter: str = "mpirun"


@dataclass(frozen=True)
class Start:
    """Every rank is there: send each its place."""


@dataclass(frozen=True)
class Release:
    """Close the connection to a rank whose exit is in the ledger; its wrapper then ends."""

    rank: int


@dataclass(frozen=True)
class Signal:
    """Pass a signal to the commands of all ranks."""

    number: int


@dataclass(frozen=True)
class Kill:
    """End a rank's command and everything it started."""

    rank: int
    why: str


@dataclass(frozen=True)
class EndMpirun:
    """Signal mpirun itself."""

    number: int


@dataclass(frozen=True)
class Say:
    """A line for the user; `loud` ones are shown without --verbose."""

    text: str
    loud: bool = True


_SAME_INTERRUPT = 0.5  # coreutils' timeout signals the process and then its group: that is one wish, not two

Action = Start | Release | Signal | Kill | EndMpirun | Say


@dataclass
class Rank:
    """What is known of one rank. `status` as subprocess gives it; `lost` when its wrapper vanished without a report.

    `accused` when a peer said that this rank does not answer, and why it thinks so; `orphaned` when the wrapper ended
    the command because mpirun's daemon on that host had died; `killed` when this ledger decided its end.
    """

    host: str = "?"
    pid: int = 0
    present: bool = False
    initialized: bool = False
    stopped: int = 0
    failing: str | None = None
    accused: str | None = None
    status: int | None = None
    lost: bool = False
    orphaned: bool = False
    killed: bool = False

    @property
    def ended(self) -> bool:
        """Whether this rank's command is known to have ended."""
        return self.status is not None or self.lost


@dataclass(frozen=True)
class Verdict:
    """How the job ended: casyncrun's exit status and the text that explains it (empty when all is well)."""

    status: int
    text: str


def how(status: int) -> str:
    """`exited with status 3` or `was killed by SIGKILL`."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"was killed by {name}"


def _shell_status(status: int) -> int:
    return status if status >= 0 else 128 - status


@dataclass
class Ledger:
    """The state of one job. `began` is the time at which mpirun was started."""

    size: int
    policy: Policy
    began: float = 0.0
    ranks: list[Rank] = field(init=False)

    def __post_init__(self) -> None:
        self.ranks = [Rank() for _ in range(self.size)]
        self._order: list[int] = []  # ranks in the order in which their failure was heard of
        self._failed_at: float | None = None
        self._cause = ""
        self._started = False
        self._interrupt: int | None = None
        self._interrupted_at = 0.0
        self._killing: float | None = None  # since when every rank is being killed
        self._ended_at: float | None = None
        self._mpirun: int | None = None
        self._mpirun_first = False  # mpirun died under running ranks, and took them with it
        self._mpirun_at = 0.0
        self._mpirun_signals: list[int] = []
        self._start_failure: str | None = None

    # What happened -------------------------------------------------------------------------------------------------

    def hello(self, rank: int, host: str, pid: int) -> list[Action]:
        """A rank's wrapper has connected."""
        entry = self.ranks[rank]
        entry.host, entry.pid, entry.present = host, pid, True
        actions: list[Action] = [Say(f"rank {rank} is on host {host}, process {pid}", loud=False)]
        if self._expected:
            entry.killed = True
            return [*actions, Kill(rank, self._start_failure or "interrupted before the start")]
        if not self._started and all(r.present for r in self.ranks):
            self._started = True
            actions.append(Start())
        return actions

    def initialized(self, rank: int) -> list[Action]:
        """A rank's session is up: from here on it notices failures by itself."""
        self.ranks[rank].initialized = True
        return []

    def failing(self, rank: int, why: str, now: float) -> list[Action]:
        """A rank says that it is about to leave, and why."""
        if self._expected:
            return []
        if self.ranks[rank].failing is None:
            self.ranks[rank].failing = why
        self._note_failure(rank, now)
        return []

    def accused(self, peer: int, why: str) -> list[Action]:
        """A rank says that `peer` does not answer. No failure yet: the ranks that say so are about to leave."""
        if not self._expected and 0 <= peer < self.size and self.ranks[peer].accused is None:
            self.ranks[peer].accused = why
        return []

    def stopped(self, rank: int, number: int) -> list[Action]:
        """A rank's command was stopped by a signal, or continued (0)."""
        self.ranks[rank].stopped = number
        what = f"was stopped by {signal.Signals(number).name}" if number else "continued"
        return [Say(f"{self._who(rank)} {what}")]

    def exited(self, rank: int, status: int, now: float, orphaned: bool = False) -> list[Action]:
        """A rank's command has ended."""
        entry = self.ranks[rank]
        entry.status, entry.stopped, entry.orphaned = status, 0, orphaned
        loud = status != 0 and not entry.killed and not self._expected
        if loud:
            self._note_failure(rank, now)
        actions: list[Action] = [Say(self._describe(rank), loud)]
        if status == 0 or not self.policy.hold:
            actions.append(Release(rank))
        self._note_deserted(now)
        return actions + self._all_ended(now)

    def _note_deserted(self, now: float) -> None:
        """A job in which only ranks remain that their peers gave up has failed, also if all the others left with 0."""
        remaining = [rank for rank, entry in enumerate(self.ranks) if not entry.ended]
        if remaining and all(self.ranks[r].accused is not None for r in remaining) and not self._expected:
            self._note_failure(remaining[0], now)

    def lost(self, rank: int, now: float) -> list[Action]:
        """The connection to a rank closed without an exit report."""
        entry = self.ranks[rank]
        if entry.ended:
            return []
        entry.lost = True
        if not entry.killed and not self._expected:
            self._note_failure(rank, now)
        return self._all_ended(now)

    def interrupted(self, number: int, now: float) -> list[Action]:
        """casyncrun received SIGINT, SIGTERM or SIGHUP; a second one kills at once."""
        if self._interrupt is not None and now - self._interrupted_at < _SAME_INTERRUPT:
            return []
        if self._interrupt is None:
            self._interrupt, self._interrupted_at = number, now
            if not self._started:
                return self._give_up("interrupted before the start", now)
            return [Say(f"{signal.Signals(number).name}: passing it to the ranks"), Signal(number)]
        return self._kill_all(f"second {signal.Signals(number).name}", now)

    def mpirun_ended(self, status: int, now: float) -> list[Action]:
        """mpirun itself is gone."""
        self._mpirun, self._mpirun_at = status, now
        self._mpirun_first = self._started and not self.explained
        return []

    def tick(self, now: float) -> list[Action]:
        """Time has passed: what is due?"""
        actions: list[Action] = []
        if not self._started and self._start_failure is None and now - self.began >= self.policy.start_timeout:
            missing = [str(r) for r, entry in enumerate(self.ranks) if not entry.present]
            self._start_failure = (
                f"{len(missing)} of {self.size} ranks ({', '.join(missing)}) did not start within "
                f"{self.policy.start_timeout:g} s. Please check connectivity between servers, and --timeout-start"
            )
            actions += self._give_up(self._start_failure, now)
        if self._failed_at is not None and self._killing is None:
            for rank, entry in enumerate(self.ranks):
                grace = self.policy.grace if entry.initialized else min(self.policy.init_grace, self.policy.grace)
                if not entry.ended and not entry.killed and now - self._failed_at >= grace:
                    entry.killed = True
                    actions.append(Say(f"{self._who(rank)} did not leave within {grace:g} s after that; killing it"))
                    actions.append(Kill(rank, self._cause))
            if all(r.ended or r.killed for r in self.ranks):
                self._killing = now
        if self._interrupt is not None and now - self._interrupted_at >= self.policy.interrupt_grace:
            actions += self._kill_all("interrupted", now)
        return actions + self._press_mpirun(now)

    # What follows --------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `tick` must be called next, if nothing happens before."""
        times = []
        if not self._started and self._start_failure is None:
            times.append(self.began + self.policy.start_timeout)
        if self._failed_at is not None and self._killing is None:
            for entry in self.ranks:
                if not entry.ended and not entry.killed:
                    grace = self.policy.grace if entry.initialized else min(self.policy.init_grace, self.policy.grace)
                    times.append(self._failed_at + grace)
        if self._interrupt is not None and self._killing is None:
            times.append(self._interrupted_at + self.policy.interrupt_grace)
        press = self._pressing_since()
        if press is not None and self._mpirun is None and len(self._mpirun_signals) < 2:
            times.append(press + self.policy.end_grace * (1 + len(self._mpirun_signals)))
        if self._mpirun is not None:
            times.append(self._mpirun_at + 2.0)
        return min(times, default=None)

    def done(self, now: float) -> bool:
        """Whether nothing more can be learnt: mpirun is gone, and so is every rank, or two seconds have passed."""
        if self._mpirun is None:
            return False
        return all(r.ended or not r.present for r in self.ranks) or now - self._mpirun_at >= 2.0

    @property
    def explained(self) -> bool:
        """Whether the ledger can say by itself why the job ends, so that mpirun's own account adds only noise."""
        return bool(self._order) or self._expected or self._ended_at is not None

    @property
    def first_failed(self) -> int | None:
        """The rank that failed first, if one did."""
        return self._order[0] if self._order else None

    @property
    def interrupt(self) -> int | None:
        """The signal that casyncrun was told to end by, if there was one."""
        return self._interrupt

    def verdict(self) -> Verdict:
        """How the job ended."""
        if all(r.status == 0 for r in self.ranks):
            return Verdict(0, "")
        if self._order:
            rank = self._order[0]
            entry = self.ranks[rank]
            code = _shell_status(entry.status) if entry.status and not entry.killed else 1
            others = self._others(rank)
            lines = [
                f"the first rank to fail: {self._cause}" + (f"; then {others}" if others else ""),
                "One or more processes exited with non-zero status, thus causing the job to be terminated. "
                "The first process to do so was:",
                f"Process name: rank {rank} on host {entry.host}",
                f"Exit code: {code}",
            ]
            return Verdict(code, "\n".join(lines))
        if self._interrupt is not None:
            return Verdict(128 + self._interrupt, f"ended by {signal.Signals(self._interrupt).name}")
        if self._start_failure is not None:
            return Verdict(1, self._start_failure)
        if self._mpirun_first:
            took = "and took its ranks with it"
            return Verdict(
                _shell_status(self._mpirun or 0) or 1, f"{self.policy.starter} itself {how(self._mpirun or 0)} {took}"
            )
        running = [str(r) for r, entry in enumerate(self.ranks) if not entry.ended]
        status = self._mpirun or 0
        return Verdict(
            _shell_status(status) or 1,
            f"{self.policy.starter} failed with exit code {_shell_status(status)}: it {how(status)} before rank"
            f"{'s' if len(running) > 1 else ''} {', '.join(running)} had {'ended' if self._started else 'started'}",
        )

    # Helpers -------------------------------------------------------------------------------------------------------

    @property
    def _expected(self) -> bool:
        """Whether ranks are bound to end badly now for a reason that is not theirs."""
        return self._interrupt is not None or self._mpirun_first or self._start_failure is not None

    def _who(self, rank: int) -> str:
        return f"rank {rank} on host {self.ranks[rank].host}"

    def _note_failure(self, rank: int, now: float) -> None:
        if not self._order:
            # A rank that stands stopped or out of reach fails the others before it fails itself: it is the first cause.
            suspects = [other for other, entry in enumerate(self.ranks) if entry.stopped or entry.accused is not None]
            self._order = [other for other in suspects if other != rank and not self.ranks[other].ended]
            self._failed_at = now
        if rank not in self._order:
            self._order.append(rank)
        first = self._order[0]
        if rank == first or not self._cause:
            self._cause = self._describe(first)

    def _describe(self, rank: int) -> str:
        entry = self.ranks[rank]
        if entry.stopped:
            text = f"{self._who(rank)} is stopped by {signal.Signals(entry.stopped).name}"
        elif entry.lost:
            text = f"{self._who(rank)} was lost: its connection to casyncrun closed without an exit report"
        elif entry.orphaned:
            text = f"{self._who(rank)} was ended because {self.policy.starter}'s daemon on that host died"
        elif entry.status is not None:
            text = f"{self._who(rank)} {how(entry.status)}"
        else:
            text = f"{self._who(rank)} {'does not answer' if entry.accused else 'is failing'}"
        why = entry.failing or entry.accused
        return f"{text} ({why})" if why else text

    def _others(self, first: int) -> str:
        groups: dict[str, list[int]] = {}
        for rank, entry in enumerate(self.ranks):
            if rank == first:
                continue
            if entry.killed:
                key = "ended by casyncrun"
            elif entry.orphaned:
                key = f"ended because {self.policy.starter}'s daemon died"
            elif entry.status is not None:
                key = how(entry.status).removeprefix("was ")
            else:
                key = "lost" if entry.lost else "without a report"
            groups.setdefault(key, []).append(rank)
        return ", ".join(f"rank{'s' * (len(r) > 1)} {', '.join(map(str, r))} {key}" for key, r in groups.items())

    def _kill_all(self, why: str, now: float) -> list[Action]:
        if self._killing is not None:
            return []
        self._killing = now
        actions: list[Action] = []
        for rank, entry in enumerate(self.ranks):
            if entry.present and not entry.ended:
                entry.killed = True
                actions.append(Kill(rank, why))
        return actions

    def _give_up(self, why: str, now: float) -> list[Action]:
        """Before the start nobody can be asked to leave."""
        self._mpirun_signals.append(signal.SIGTERM)
        return [*self._kill_all(why, now), EndMpirun(signal.SIGTERM)]

    def _all_ended(self, now: float) -> list[Action]:
        if self._ended_at is not None or not all(r.ended for r in self.ranks):
            return []
        self._ended_at = now
        return [Release(rank) for rank in range(self.size)]

    def _pressing_since(self) -> float | None:
        """From when on mpirun is overdue: all ranks ended, or were told to."""
        times = [t for t in (self._ended_at, self._killing) if t is not None]
        return min(times, default=None)

    def _press_mpirun(self, now: float) -> list[Action]:
        since = self._pressing_since()
        if since is None or self._mpirun is not None or len(self._mpirun_signals) == 2:
            return []
        if now - since < self.policy.end_grace * (1 + len(self._mpirun_signals)):
            return []
        number = (signal.SIGTERM, signal.SIGKILL)[len(self._mpirun_signals)]
        self._mpirun_signals.append(number)
        return [
            Say(f"{self.policy.starter} has not ended by itself; sending it {number.name}", loud=False),
            EndMpirun(number),
        ]
