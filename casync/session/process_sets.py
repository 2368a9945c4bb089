"""Process sets: operations among some of the ranks.

A set is a session of its own over its ranks: what waits in one set never keeps another from going on.

    even = ProcessSet([0, 2])
    init(process_sets=[even])          # casync.session.default
    even.included(), even.rank()       # this process's place in it

All ranks, members or not, agree on which sets there are, and so on their numbers, whenever that changes.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from casync.errors import InvalidArgumentError, MismatchError, NotAvailableError
from casync.session.gather_bytes import gather_bytes
from casync.session.session import Session

__all__ = ["GLOBAL_PROCESS_SET", "ProcessSet", "ProcessSets", "is_communicator", "ranks_of"]

_NAME = "process_sets"  # of the operation by which ranks agree on them
_TAG_BITS = 16  # of a session's tag that are the world's own
_UNANNOUNCED = 1 << 13  # numbers from here on are of sets that only their members know


class ProcessSet:
    """Some of the ranks. `ranks_or_comm` is a list of them, or an mpi4py communicator.

    Its ranks are known at once, or from `init()` on if a communicator was given; `process_set_id` is None while it is
    not in use: before it is given to `init()` or `add_process_set()`, after it is removed, and after `shutdown()`.
    """

    def __init__(self, ranks_or_comm: Any) -> None:
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = None
        self.mpi_comm: Any = None
        self.session: Session | None = None
        """This rank's session over the set: none while it is not in use, and on other ranks."""
        self.world: Session | None = None
        """The session over all ranks, while the set is in use."""
        if is_communicator(ranks_or_comm):
            self.mpi_comm = ranks_or_comm
        else:
            self.ranks = sorted(ranks_of(ranks_or_comm))

    def size(self) -> int | None:
        """How many ranks the set has; None while it is not in use."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This process's position in the set; None while it is not in use. ValueError on a rank that is not in it.

        `root_rank` of operations is not this but the rank in the world.
        """
        return None if self.world is None else self.member_session().rank

    def included(self) -> bool | None:
        """Whether this process is in the set; None while it is not in use."""
        return None if self.world is None else self.session is not None

    def member_session(self) -> Session:
        """This rank's session over the set. Raises `InvalidArgumentError`, with the remedy, if there is none."""
        if self.session is not None:
            return self.session
        world = self.check_in_use()
        raise InvalidArgumentError(
            f"Rank {world.rank} is not a member of the provided process set, {self}: only its ranks submit to it. Ask "
            "process_set.included() first",
            rank=world.peers[world.rank],
        )

    def check_in_use(self) -> Session:
        """The session over all ranks. Raises `InvalidArgumentError`, with the remedy, if the set is not in use."""
        if self.world is None:
            raise InvalidArgumentError(
                f"Process set provided does not exist: {self}. Give it to hvd.init(process_sets=[...]) or "
                "hvd.add_process_set() first"
            )
        return self.world

    def root(self, root_rank: int) -> int:
        """The position in the set of the rank that is `root_rank` in the world."""
        ranks = self.ranks or []
        if root_rank not in ranks:
            raise InvalidArgumentError(
                f"broadcast received invalid root rank {root_rank}: it must be one of {self.ranks}, the set's ranks"
            )
        return ranks.index(root_rank)

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: object) -> ProcessSet:
        """The set itself: a copy of a program's settings means the same ranks."""
        return self

    def __reduce__(self) -> tuple[Callable[..., ProcessSet], tuple[list[int], ...]]:
        """By its ranks: where it is loaded, it is a set that is not in use yet. That of all ranks is itself again."""
        if self.process_set_id == 0:
            return _everyone, ()
        if self.ranks is None:
            raise NotAvailableError(f"{self} has no ranks before hvd.init(): pickle it after that")
        return ProcessSet, (self.ranks,)

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class ProcessSets:
    """The sets of one world, which is the first of them. Every method is collective over the world."""

    def __init__(self, world: Session, everyone: ProcessSet) -> None:
        self.sessions: dict[int, Session] = {}
        """This rank's sessions by number: the world's, and those of the sets that it is in."""
        self.is_started = False
        """Whether `start()` has been called."""
        self._world = world
        self._sets: dict[int, ProcessSet] = {}
        self._unannounced: dict[tuple[int, ...], ProcessSet] = {}
        """The sets that `among` has opened, each by its ranks."""
        self._next = 0
        everyone.ranks = list(range(world.size))
        self._use(everyone, world)

    def ids_and_ranks(self) -> dict[int, list[int]]:
        """The number of every set, and its ranks in the world."""
        return {number: list(one.ranks or ()) for number, one in self._sets.items()}

    def of_number(self, number: int) -> ProcessSet:
        """The set in use that has this number."""
        return next(one for one in (*self._sets.values(), *self._unannounced.values()) if one.process_set_id == number)

    def start(self, wanted: Sequence[ProcessSet]) -> None:
        """Take sets into use at `init()`, numbered in the order of the list. Of those given as communicators, each rank
        gives the ones that it is in.
        """
        told = self._exchange(
            {"init(process_sets)": [[self._ranks_of(one), one.mpi_comm is not None] for one in wanted]}
        )
        every = [item["init(process_sets)"] for item in told]
        lists = [[ranks for ranks, is_comm in given if not is_comm] for given in every]
        self._compare(lists, lambda ranks: f"init(process_sets={ranks})")
        for rank, given in enumerate(every):
            for ranks in (ranks for ranks, is_comm in given if is_comm):
                missing = [member for member in ranks if [ranks, True] not in every[member]]
                if missing:
                    raise MismatchError(
                        f"Mismatched process sets: rank {rank} gave init() a communicator of ranks {ranks}, and rank "
                        f"{missing[0]}, which is in it, did not",
                        rank=self._world.peers[self._world.rank],
                        peer=self._world.peers[missing[0]],
                    )
        for column in itertools.zip_longest(*every):
            for ranks, _ in filter(None, column):
                self._check_ranks(ranks)
                if ranks not in self.ids_and_ranks().values():
                    self._open(ProcessSet(ranks))
        self.is_started = True

    def take(self, wanted: Sequence[ProcessSet]) -> None:
        """Make `wanted` those of the sets in use that have their ranks. Not collective.

        Raises `InvalidArgumentError` if there is none, and if two of `wanted`, or one and the world, have the same.
        """
        taken = [0]
        for one in wanted:
            ranks = one.ranks = self._ranks_of(one)
            number = next((number for number, known in self.ids_and_ranks().items() if known == ranks), None)
            if number is None:
                raise InvalidArgumentError(
                    f"Process set provided does not exist: {one}. Sets are taken into use by the first init() that is "
                    "given some; hvd.add_process_set() adds one later"
                )
            if number in taken:
                raise _duplicate(ranks, number)
            taken.append(number)
            holder = self._sets[number]
            if holder is not one:
                one.process_set_id, one.session, one.world = number, holder.session, holder.world
                holder.process_set_id = holder.session = holder.world = None
                self._sets[number] = one

    def add(self, one: ProcessSet) -> ProcessSet:
        """Take one more set into use."""
        ranks = one.ranks
        if ranks is None:
            raise NotAvailableError(
                "a process set given as a communicator can be used from init(process_sets=[...]) on, not added later; "
                "give add_process_set() a list of ranks"
            )
        if one.process_set_id is not None:
            one = ProcessSet(ranks)  # in use, so these ranks are refused below, on all ranks alike
        told = self._exchange({"add_process_set": ranks})
        self._compare(told, _call)
        self._check_ranks(ranks)
        for number, known in self.ids_and_ranks().items():
            if known == ranks:
                raise _duplicate(known, number)
        self._open(one)
        return one

    def remove(self, one: ProcessSet) -> bool:
        """End the use of a set; False if it is not in use, or the world."""
        number = one.process_set_id
        told = self._exchange({"remove_process_set": None if number is None else [number, one.ranks]})
        self._compare(told, _call)
        if number is None or number == 0 or self._sets.get(number) is not one:
            return False
        self._end(number)
        return True

    def among(self, ranks: Sequence[int]) -> ProcessSet:
        """The set of `ranks`, this one among them: one that is in use, the world too, or else a set that only they know
        of. It has a number of this rank's own, and is in use until the world ends. Collective over `ranks` alone.
        """
        wanted = sorted(ranks)
        self._check_ranks(wanted)
        for one in self._sets.values():
            if one.ranks == wanted:
                return one
        key = tuple(wanted)
        if key not in self._unannounced:
            one = ProcessSet(wanted)
            number = _UNANNOUNCED + len(self._unannounced)
            # Ranks give it different numbers. So its tag says only that it is one of these, and its files are named by
            # its ranks. The others come when their programs do, as to an operation.
            suffix = f"ranks{wanted[0]}-{wanted[-1]}.{zlib.crc32(repr(wanted).encode()):08x}"
            config = self._world.config
            patience = max(config.start_timeout_s, config.timeout_s)
            session = self._session_over(wanted, number, _UNANNOUNCED, suffix, start_timeout_s=patience)
            one.process_set_id, one.session, one.world = number, session, self._world
            self._unannounced[key], self.sessions[number] = one, session
        return self._unannounced[key]

    def close(self) -> None:
        """End the use of all, the newest first and the world last."""
        for one in reversed(self._unannounced.values()):
            session, number = one.member_session(), one.process_set_id
            one.process_set_id = one.session = one.world = None
            if number is not None:
                del self.sessions[number]
            session.shutdown()
        self._unannounced.clear()
        for number in sorted(self._sets, reverse=True):
            self._end(number)

    # --- agreement ----------------------------------------------------------------------------------------------------

    def _exchange(self, mine: Any) -> list[Any]:
        """Return what every rank says, in rank order."""
        return [json.loads(bytes(told)) for told in gather_bytes(self._world, _NAME, json.dumps(mine).encode())]

    def _compare(self, told: Sequence[Any], show: Callable[[Any], str]) -> None:
        own = self._world.rank
        for rank, other in enumerate(told):
            if other != told[0]:
                unlike = next(peer for peer, said in enumerate(told) if said != told[own])
                raise MismatchError(
                    f"Mismatched process sets: rank 0 called {show(told[0])} and rank {rank} {show(other)}. All ranks "
                    "must make the same calls in the same order, those that are not in the set too",
                    rank=self._world.peers[own],
                    peer=self._world.peers[unlike],
                )

    def _check_ranks(self, ranks: Sequence[int]) -> None:
        """Raises `InvalidArgumentError`, on all ranks alike, unless `ranks` can be a set."""
        size = self._world.size
        if not ranks or len(set(ranks)) != len(ranks) or not 0 <= ranks[0] <= ranks[-1] < size:
            raise InvalidArgumentError(f"process set {ranks}: give one or more distinct ranks of 0 to {size - 1}")

    def _ranks_of(self, one: Any) -> list[int]:
        if not isinstance(one, ProcessSet):
            raise InvalidArgumentError(f"process_sets holds {one!r}, which is no ProcessSet")
        return (one.ranks or []) if one.mpi_comm is None else self._places_of(one.mpi_comm)

    def _places_of(self, comm: Any) -> list[int]:
        """The ranks in this world of a communicator's processes."""
        ranks = ranks_of(comm)
        if outside := [rank for rank in ranks if rank not in self._world.peers]:
            raise InvalidArgumentError(f"the communicator holds rank {outside[0]} of MPI's world, which is not in ours")
        return sorted(self._world.peers.index(rank) for rank in ranks)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def _open(self, one: ProcessSet) -> None:
        """All ranks open sets in the order of their numbers, so none waits for another in a circle."""
        number, ranks = self._next, one.ranks or []
        is_member = self._world.rank in ranks
        self._use(one, self._session_over(ranks, number, number, f"set{number}") if is_member else None)

    def _session_over(self, ranks: Sequence[int], number: int, tag: int, suffix: str, **settings: Any) -> Session:
        """`suffix` is that of its files; `settings` are its own."""
        world = self._world
        log, timeline = world.config.event_log, world.config.timeline
        # A plan file is the world's: of other ranks its plans would not be.
        config = replace(
            world.config, plan_file="", event_log=log and f"{log}.{suffix}",
            timeline=f"{timeline}.{suffix}" if timeline not in ("", "DYNAMIC") else "", **settings,
        )  # fmt: skip
        peers = [world.peers[rank] for rank in ranks]
        return Session(config, tag=world.tag | tag << _TAG_BITS, peers=peers, number=number, job=world.job)

    def _use(self, one: ProcessSet, session: Session | None) -> None:
        one.process_set_id, one.session, one.world = self._next, session, self._world
        self._sets[self._next] = one
        if session is not None:
            self.sessions[self._next] = session
            session.publish(self._next)
        self._next += 1

    def _end(self, number: int) -> None:
        one = self._sets.pop(number)
        session, one.session, one.world = one.session, None, None
        if number > 0:
            one.process_set_id = None
        else:
            one.ranks = None
        if session is not None:
            del self.sessions[number]
            session.shutdown()


def is_communicator(value: Any) -> bool:
    """Whether `value` is one of mpi4py's communicators, which is not imported for it."""
    return hasattr(value, "Get_group")


def ranks_of(ranks_or_comm: Any) -> list[int]:
    """The ranks as given; of a communicator, their numbers in MPI's world."""
    if is_communicator(ranks_or_comm):
        from mpi4py import MPI

        group = ranks_or_comm.Get_group()
        return list(MPI.Group.Translate_ranks(group, list(range(group.Get_size())), MPI.COMM_WORLD.Get_group()))
    ranks: list[Any] = list(ranks_or_comm) if isinstance(ranks_or_comm, Iterable) else [None]
    if not all(isinstance(rank, int) for rank in ranks):
        raise InvalidArgumentError(f"{ranks_or_comm!r} is neither a list of process ranks nor an mpi4py Comm object")
    return ranks


def _duplicate(ranks: Sequence[int], number: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"Attempted to add a duplicate process set: ranks {ranks} are process set {number} already"
    )


def _call(told: dict[str, Any]) -> str:
    return ", ".join(f"{name}({ranks})" for name, ranks in told.items())


def _everyone() -> ProcessSet:
    return GLOBAL_PROCESS_SET


GLOBAL_PROCESS_SET: Final = ProcessSet(())
"""All ranks: what every `process_set=` is by default, and `casync.torch.global_process_set`. Its number is 0."""
GLOBAL_PROCESS_SET.process_set_id, GLOBAL_PROCESS_SET.ranks = 0, None
