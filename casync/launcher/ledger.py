"""The launcher's decisions about a running job. Pure: no clock, no I/O, so tests call it with literals.

The job feeds it what happened and the time; it answers with what to do:

    ledger = Ledger(size=4, policy=Policy())
    ledger.exited(2, -9, now=1.0)        # [Release(2), Say(...)]
    ledger.tick(now=16.0)                # [Kill(0, "rank 2 ..."), ...]
    ledger.verdict().text                # "rank 2 on host h2 was killed by SIGKILL"

Rules. The first rank that failed is the one whose failure was heard of first: its own word (`failing`), its exit, or
the loss of its wrapper. After it, ranks that reported `initialized` have `grace` seconds to leave by themselves, the
others `init_grace`, since MPI_Init cannot notice a dead peer, and those that stand stopped none. When all ranks have
ended, mpirun has `end_grace`.

A rank that is stopped before it is through init(), or while all others want to leave, holds up the job without a word
of its own: it fails after `start_timeout`. One that has ended and for which others wait in init() fails at once. One
that runs may take as long to come to init() as those that wait there allow.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import dataclass, field

from casync.launcher.account import Rank, Verdict, describe, group, how, ranks_text, shell_status, who
from casync.launcher.actions import Action, EndMpirun, Kill, Policy, Release, Say, Signal, Start
from casync.launcher.arrivals import Arrivals, Overdue

__all__ = ["Ledger"]

_SAME_INTERRUPT = 0.5  # coreutils' timeout signals the process and then its group: that is one wish, not two


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
        self._arrivals = Arrivals()
        self._shares_gpu = False  # and that was said

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

    def entered(
        self, rank: int, key: str, peers: Collection[int], warning_s: float, timeout_s: float, now: float
    ) -> list[Action]:
        """A rank waits in init() for `peers`: after `warning_s` that is said, after `timeout_s` the job ends."""
        self._arrivals.entered(rank, key, peers, warning_s, timeout_s, now)
        return self._end_vain_waits(now)

    def met(self, key: str) -> list[Action]:
        """A rank waits no longer, because all its peers have come."""
        self._arrivals.met(key)
        return []

    def initialized(self, rank: int) -> list[Action]:
        """A rank's session is up: from here on it notices failures by itself."""
        self.ranks[rank].initialized = True
        return []

    def uses_gpu(self, rank: int, uuid: str) -> list[Action]:
        """A rank's tensors are on this GPU. The first time that another's are, too, is said, and no other."""
        self.ranks[rank].gpu = uuid
        sharing = [other for other, entry in enumerate(self.ranks) if entry.gpu == uuid]
        if len(sharing) < 2 or self._shares_gpu:
            return []
        self._shares_gpu = True
        return [
            Say(
                f"{ranks_text(sharing)} on host {self.ranks[rank].host} use one GPU, {uuid}. If each is meant to have "
                "its own, have it call set_device(hvd.local_rank()) before it makes its first tensor"
            )
        ]

    def leaving(self, rank: int, now: float) -> list[Action]:
        """A rank's program is through, and it waits until all others are."""
        self.ranks[rank].left_in_order, self.ranks[rank].left_at = True, now
        return self._end_vain_waits(now)

    def gave_up(self, rank: int, why: str) -> list[Action]:
        """A rank's session was ended by something that another rank did, and it may leave because of that."""
        self.ranks[rank].gave_up = self.ranks[rank].gave_up or why
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

    def stopped(self, rank: int, number: int, now: float) -> list[Action]:
        """A rank's command was stopped by a signal, or continued (0)."""
        self.ranks[rank].stopped, self.ranks[rank].stopped_at = number, now
        what = f"was stopped by {signal.Signals(number).name}" if number else "continued"
        return [Say(f"{self._who(rank)} {what}")]

    def exited(self, rank: int, status: int, now: float, orphaned: bool = False) -> list[Action]:
        """A rank's command has ended."""
        entry = self.ranks[rank]
        entry.status, entry.stopped, entry.orphaned = status, 0, orphaned
        entry.left_at = now if entry.left_at is None else entry.left_at
        if status != 0 and not entry.killed and not self._expected:
            self._note_failure(rank, now)
        actions: list[Action] = [Say(self._describe(rank), loud=False)]
        if status == 0 or not self.policy.hold:
            actions.append(Release(rank))
        self._note_deserted(now)
        return actions + self._end_vain_waits(now) + self._all_ended(now)

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
        if not self.explained:
            actions += self._end_hold_ups(now)
        if not self.explained:
            for overdue in self._arrivals.overdue(now):
                actions += self._note_absent(overdue, now)
        if self._failed_at is not None and self._killing is None:
            for rank, entry in enumerate(self.ranks):
                grace = self._grace(entry)
                if not entry.ended and not entry.killed and now - self._failed_at >= grace:
                    entry.killed = True
                    late = f"; it did not leave within {grace:g} s after that" if grace else ""
                    actions.append(Kill(rank, self._cause + late))
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
            times += [self._failed_at + self._grace(r) for r in self.ranks if not r.ended and not r.killed]
        if not self.explained:
            times += self._hold_ups().values()
            if (arrival := self._arrivals.next_deadline()) is not None:
                times.append(arrival)
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
            code = shell_status(entry.status) if entry.status and not entry.killed else 1
            others = group({r: e for r, e in enumerate(self.ranks) if r != rank}, self.policy.starter)
            return Verdict(code, f"the first rank to fail: {self._cause}" + (f"; then {others}" if others else ""))
        if self._interrupt is not None:
            return Verdict(128 + self._interrupt, f"ended by {signal.Signals(self._interrupt).name}")
        if self._start_failure is not None:
            return Verdict(1, self._start_failure)
        if self._mpirun_first:
            took = "and took its ranks with it"
            return Verdict(
                shell_status(self._mpirun or 0) or 1, f"{self.policy.starter} itself {how(self._mpirun or 0)} {took}"
            )
        running = [r for r, entry in enumerate(self.ranks) if not entry.ended]
        status = self._mpirun or 0
        return Verdict(
            shell_status(status) or 1,
            f"{self.policy.starter} failed with exit code {shell_status(status)}: it {how(status)} before "
            f"{ranks_text(running)} had {'ended' if self._started else 'started'}",
        )

    # Helpers -------------------------------------------------------------------------------------------------------

    @property
    def _expected(self) -> bool:
        """Whether ranks are bound to end badly now for a reason that is not theirs."""
        return self._interrupt is not None or self._mpirun_first or self._start_failure is not None

    def _who(self, rank: int) -> str:
        return who(rank, self.ranks[rank])

    def _describe(self, rank: int) -> str:
        return describe(rank, self.ranks[rank], self.policy.starter)

    def _grace(self, entry: Rank) -> float:
        """How long a rank may take to leave by itself after another one failed."""
        if entry.stopped:
            return 0.0
        return self.policy.grace if entry.initialized else min(self.policy.init_grace, self.policy.grace)

    def _hold_ups(self) -> dict[int, float]:
        """Return by when each rank must run again that stands stopped where others cannot notice it."""
        deadlines = {}
        for rank, entry in enumerate(self.ranks):
            if not entry.stopped or entry.killed:
                continue
            since: float | None = entry.stopped_at
            if entry.initialized:  # what others wait for in between, they end by themselves
                left = [other.left_at for number, other in enumerate(self.ranks) if number != rank]
                times = [time for time in left if time is not None]
                since = max([entry.stopped_at, *times]) if times and len(times) == len(left) else None
            if since is not None:
                deadlines[rank] = since + self.policy.start_timeout
        return deadlines

    def _end_hold_ups(self, now: float) -> list[Action]:
        for rank, deadline in self._hold_ups().items():
            if now >= deadline:
                entry = self.ranks[rank]
                where = "while all others have left" if entry.initialized else "before it was through init()"
                name = signal.Signals(entry.stopped).name
                fault = f"was stopped by {name} {where}, for {self.policy.start_timeout:g} s (--start-timeout)"
                return self._end_job(rank, fault, now)
        return []

    def _note_absent(self, overdue: Overdue, now: float) -> list[Action]:
        """Ranks wait in init() for others that run, or of which nothing is known."""
        waiting = ranks_text(overdue.waiting)
        if not overdue.final:
            absent = ", ".join(self._who(rank) + self._stands(rank) for rank in overdue.missing)
            until = f"The job ends when it is {overdue.timeout_s:g} s (CASYNC_TIMEOUT_SECONDS)"
            return [Say(f"{waiting} waited {overdue.seconds:.3g} s in init() for {absent}. {until}")]
        first, *more = overdue.missing
        fault = f"did not come to init() within {overdue.timeout_s:g} s (CASYNC_TIMEOUT_SECONDS)"
        fault += f", nor did {ranks_text(more)}" if more else ""
        return self._end_job(first, f"{fault}, where {waiting} waited", now)

    def _stands(self, rank: int) -> str:
        stopped = self.ranks[rank].stopped
        return f" (stopped by {signal.Signals(stopped).name})" if stopped else ""

    def _end_vain_waits(self, now: float) -> list[Action]:
        """Some wait for a rank that has ended: in init(), where it never was, or to leave MPI, which it did not."""
        gone = [rank for rank, entry in enumerate(self.ranks) if entry.ended]
        if self.explained or not gone:
            return []
        if vain := self._arrivals.in_vain(gone):
            rank, waiting = vain
            ended = describe(rank, self.ranks[rank], self.policy.starter).removeprefix(self._who(rank) + " ")
            return self._end_job(rank, f"{ended} before it came to init(), where {ranks_text(waiting)} waited", now)
        rest = [rank for rank, entry in enumerate(self.ranks) if not entry.ended]
        unruly = [rank for rank in gone if self.ranks[rank].initialized and not self.ranks[rank].left_in_order]
        if rest and unruly and all(self.ranks[rank].left_in_order for rank in rest):
            fault = "exited with status 0 but did not leave MPI (os._exit?)"
            return self._end_job(unruly[0], f"{fault}, for which {ranks_text(rest)} waited", now)
        return []

    def _end_job(self, rank: int, fault: str, now: float) -> list[Action]:
        """`rank` holds up ranks that cannot leave by themselves."""
        self.ranks[rank].fault = fault
        self._note_failure(rank, now)
        return self._kill_all(self._cause, now)

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
        """Kill all ranks and end mpirun: before the start no rank can be asked to leave."""
        self._mpirun_signals.append(signal.SIGTERM)
        return [*self._kill_all(why, now), EndMpirun(signal.SIGTERM)]

    def _all_ended(self, now: float) -> list[Action]:
        if self._ended_at is not None or not all(r.ended for r in self.ranks):
            return []
        self._ended_at = now
        return [Release(rank) for rank in range(self.size)]

    def _pressing_since(self) -> float | None:
        """Return when all ranks had ended, or were told to: mpirun is overdue from then on. None: neither is so yet."""
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
