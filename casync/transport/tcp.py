"""Processes that reach each other by sockets: TCP between hosts, sockets of the host inside it.

They meet in a store (`stores`). There each leaves its host and its address, and for each session where it
listens. Then each pair connects (`handshake`), and the core is given the sockets.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from casync.config.settings import Config
from casync.errors import CasyncError, PeerFailureError, StartError
from casync.rendezvous import descriptors, interfaces
from casync.rendezvous.choose import Started
from casync.rendezvous.handshake import Meeting, listen, notice_loss, pacing_of, places, run
from casync.rendezvous.incarnations import Missing, Twin, agree
from casync.rendezvous.pacing import MOST_STREAMS
from casync.rendezvous.secret import FILE, VARIABLE, job_secret
from casync.rendezvous.stores import Store, open_store, store_of

__all__ = ["TcpJob", "join", "session_name"]

_LOOK_SECONDS = 1.0  # between looks at whether others have given up
_LEAST_SECONDS = 0.05  # to ask the store
_SECRET_SECONDS = 10.0
_MOST_ADDRESSES = 8

_joined: dict[tuple[Started, int | str], TcpJob] = {}


def join(started: Started, config: Config, store: Any) -> TcpJob:
    """Collective over the processes the first time; then what it returned."""
    # A job keeps its store, so no later one has its number; a folder is known by its path.
    key = (started, os.fspath(store) if isinstance(store, (str, os.PathLike)) else id(store))
    if key not in _joined:
        deadline = time.monotonic() + config.start_timeout_s
        if store is None:
            given = open_store(started, config.start_timeout_s, job_secret(os.environ))
        else:
            given = store_of(store)
        _joined[key] = TcpJob(started, given, config, deadline)
    return _joined[key]


class TcpJob:
    """See `job.Job`. Raises `StartError` if not all processes come in time, or two say that they are one."""

    name = "tcp"

    def __init__(self, started: Started, store: Store, config: Config, deadline: float) -> None:
        self.rank = started.rank
        self._started = started
        self._store = store
        self._connected: Counter[str] = Counter()
        self._addresses = _own_addresses(started, config)
        self._address = self._addresses[0]
        if self.rank == 0 and not job_secret(os.environ):
            self._leave("secret", secrets.token_hex(32))
        card = {"host": _host_key(), "address": self._address, "pid": os.getpid()}
        self.life = ""
        try:
            self.life, cards = agree(store, self._key("life"), self.rank, started.size, card, deadline)
        except Twin as twin:
            told = twin.card
            raise StartError(
                f"two processes say that they are rank {self.rank} of {started.size}: this one, process {os.getpid()} "
                f"at {self._address}, and process {told['pid']} at {told['address']}. Give each its own RANK, and a "
                "second job on the same host another MASTER_PORT"
            ) from None
        except Missing as error:
            raise self._alone(error.ranks, range(started.size), config) from None
        self.hosts: list[str] = [card["host"] for card in cards]
        self._secret = job_secret(os.environ) or self._agreed_secret()

    def _agreed_secret(self) -> bytes:
        """Return the secret that rank 0 has left. It did so before its card."""
        words = self._words(["secret"], time.monotonic() + _SECRET_SECONDS)
        if not words:
            raise StartError(
                f"rank 0 has a secret for this job ({VARIABLE} or {FILE}), and rank {self.rank} has none: give all "
                "ranks the same"
            )
        return bytes.fromhex(json.loads(words["secret"]))

    def note_failure(self) -> None:
        pass  # nobody waits for anybody at the end of the process

    def connect(self, tag: int, ranks: Sequence[int], config: Config) -> Any:
        """Connect as `job.Job` says, by two or more sockets for each of the other ranks: one for heads, the others for
        bodies.
        """
        if len(ranks) == 1:
            return None
        from casync import _core

        deadline = time.monotonic() + config.start_timeout_s
        session = session_name(tag, ranks)
        self._connected[session] += 1
        session = f"{self.life}/session/{session}, {self._connected[session]}"
        meeting = Meeting(
            me=self.rank,
            secret=self._secret,
            session=f"{self._started.job}/{session}",
            pace=lambda connection: pacing_of(connection, config),
        )
        self._make_room(session, ranks, config)
        is_one_host = len({self.hosts[rank] for rank in ranks}) == 1
        with contextlib.ExitStack() as stack:
            doors = listen([interfaces.loopback()] if is_one_host else self._addresses, stack)
            self._leave(f"{session}/{self.rank}", doors.told)
            told = self._all(f"{session}/", ranks, deadline, config)
            at = {
                rank: places(place, is_near=self.hosts[rank] == self.hosts[self.rank])
                for rank, place in zip(ranks, told, strict=True)
                if rank != self.rank
            }
            try:
                sockets = run(meeting.meet(doors.sockets, at, max(0.1, deadline - time.monotonic())))
            except BaseException:
                meeting.close()
                raise
        for connections in sockets.values():
            for connection in connections:
                notice_loss(connection, config)
        given = [[one.detach() for one in sockets[rank]] if rank != self.rank else [] for rank in ranks]
        index: dict[str, int] = {}
        hosts = [index.setdefault(self.hosts[rank], len(index)) for rank in ranks]
        try:
            return _core.connect_tcp(ranks.index(self.rank), given, hosts, tag, max(0.1, deadline - time.monotonic()))
        except PeerFailureError as error:
            error.args = (f"the ranks {list(ranks)} could not form a world: {error}",)
            raise

    def _make_room(self, session: str, ranks: Sequence[int], config: Config) -> None:
        """Make room for a session's connections. If there is not enough, say so at once, here and to the others."""
        near = sum(self.hosts[rank] == self.hosts[self.rank] for rank in ranks) - 1
        far = len(ranks) - 1 - near
        fewest, most = config.tcp_streams or 1, config.tcp_streams or MOST_STREAMS
        strangers = 2 * len(ranks)
        least = near * (1 + fewest) + far * (1 + fewest)
        try:
            what = f"rank {self.rank} has {len(ranks) - 1} other ranks to connect with, which"
            descriptors.make_room(what, least, near * (1 + fewest) + far * (1 + most) + strangers)
        except CasyncError as error:
            with contextlib.suppress(CasyncError):  # rank 0 may have gone for the same reason
                self._leave(f"{session}/given up", str(error))
            self._linger(ranks)
            raise

    # --- words --------------------------------------------------------------------------------------------------------

    def _leave(self, key: str, word: Any) -> Any:
        """Leave `word`; returns what is there: another process may have left its own."""
        return json.loads(self._store.put(self._key(key), json.dumps(word).encode()))

    def _words(self, keys: Sequence[str], deadline: float) -> dict[str, bytes]:
        known = {self._key(key): key for key in keys}
        found = self._store.wait(list(known), max(_LEAST_SECONDS, deadline - time.monotonic()))
        return {known[key]: word for key, word in found.items()}

    def _all(self, prefix: str, ranks: Sequence[int], deadline: float, config: Config) -> list[Any]:
        """Return what each of `ranks` has left. Raises a `StartError` that names those that left nothing."""
        keys = {rank: f"{prefix}{rank}" for rank in ranks}
        given_up = f"{prefix}given up"
        while True:
            words = self._words(list(keys.values()), min(deadline, time.monotonic() + _LOOK_SECONDS))
            missing = [rank for rank, key in keys.items() if key not in words]
            if not missing:
                return [json.loads(words[key]) for key in keys.values()]
            if time.monotonic() >= deadline:
                break
            if told := self._words([given_up], time.monotonic()):
                word = json.loads(told[given_up])
                if isinstance(word, str):
                    raise StartError(word)
                missing = word
                break
        if self.rank == ranks[0]:
            self._leave(given_up, missing)
        raise self._alone(missing, ranks, config)

    def _alone(self, missing: Sequence[int], ranks: Sequence[int], config: Config) -> StartError:
        """Make the error to raise when `missing` have not come."""
        self._linger(ranks)
        return StartError(
            f"rank {self.rank} at {self._address} has waited in init() for ranks {list(missing)} of {len(ranks)}, "
            f"which have not come within {config.start_timeout_s:g} s (CASYNC_START_TIMEOUT_SECONDS); "
            f"{len(ranks) - len(missing)} have. Have all {len(ranks)} processes been started, and do all call init() "
            "with the same comm=?"
        )

    def _linger(self, ranks: Sequence[int]) -> None:
        """Have the first rank leave last: the store may be with it, and the others must still hear why."""
        if self.rank == ranks[0]:
            time.sleep(2 * _LOOK_SECONDS)

    def _key(self, key: str) -> str:
        return f"casync/{self._started.job}/{key}"


def session_name(tag: int, ranks: Sequence[int]) -> str:
    """Return a name that is alike on all ranks of a session, and short for any number of them: stores limit keys."""
    return f"{tag} of {len(ranks)} ranks {hashlib.blake2s(','.join(map(str, ranks)).encode()).hexdigest()}"


def _host_key() -> str:
    """Return a key that is equal exactly where processes can share memory: containers differ by name, machines by
    boot.
    """
    from casync import _core

    return f"{socket.gethostname()} {_core.boot_id()}"


def _own_addresses(started: Started, config: Config) -> list[str]:
    """Return the addresses where others reach this process, the best first. These are one of each interface that is
    named, and no other; else that of the one that reaches MASTER_ADDR, and then those of the other networks.
    """
    known = interfaces.addresses()
    if config.network_interface:
        names = [name.strip() for name in config.network_interface.split(",")]
        if found := [text for name in names for text in interfaces.named(name, known)[:1]]:
            return found
        raise StartError(
            f"CASYNC_NETWORK_INTERFACE={config.network_interface} names none of this host's interfaces: "
            f"{', '.join(f'{name} ({address})' for name, texts in known.items() for address in texts)}"
        )
    try:
        first = interfaces.reaching(started.address)
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StartError(f"MASTER_ADDR={started.address} cannot be resolved: {reason}") from None
    except OSError:
        first = interfaces.loopback()  # no network at all
    if started.address in interfaces.LOOPBACK:
        return [first]
    others = [text for texts in known.values() for text in texts if not interfaces.is_loopback(text)]
    # A host's own name may mean a loopback address on it, which no other host reaches.
    best = others if interfaces.is_loopback(first) else [first, *others]
    return list(dict.fromkeys([*best[:_MOST_ADDRESSES], first]))
