"""How processes that have met in a store connect, and what a stranger gets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time

import pytest

from casync.config.settings import Config
from casync.errors import CasyncError
from casync.rendezvous.handshake import Meeting, Place, listen, notice_loss
from casync.rendezvous.handshake import places as places_of
from casync.rendezvous.pacing import Pacing
from casync.rendezvous.proof import Hello


def meeting(me: int, secret: bytes = b"s" * 32, session: str = "x") -> Meeting:
    """Ranks have streams of their own choice here, as if their distances were unlike."""
    return Meeting(me, secret, session, lambda _: Pacing(2 + me % 2, ""))


@contextlib.contextmanager
def worlds(size: int):
    """The doors of `size` ranks of one host, and where each is found."""
    with contextlib.ExitStack() as stack:
        doors = [listen(["127.0.0.1"], stack) for _ in range(size)]
        yield doors, {rank: places_of(door.told, is_near=rank % 2 == 0) for rank, door in enumerate(doors)}


def others(places, me):
    return {rank: place for rank, place in places.items() if rank != me}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_each_pair_has_its_connections_and_their_ends_belong_together(size: int) -> None:
    async def all_meet():
        return await asyncio.gather(*(
            meeting(me).meet(doors[me].sockets, others(places, me), 10.0) for me in range(size)
        ))  # fmt: skip

    with worlds(size) as (doors, places):
        made = asyncio.run(all_meet())
    for one in range(size):
        for other in range(size):
            for number in range(3 + min(one, other) % 2 if one != other else 0):
                made[one][other][number].setblocking(True)
                made[other][one][number].setblocking(True)
                made[one][other][number].sendall(bytes([one, other, number]))
                assert made[other][one][number].recv(3) == bytes([one, other, number])
    for of_rank in made:
        for sockets in of_rank.values():
            for each in sockets:
                each.close()


def test_who_does_not_know_the_secret_is_not_let_in_and_says_so() -> None:
    async def meet():
        return await asyncio.gather(
            meeting(0, secret=b"another").meet(doors[0].sockets, others(places, 0), 10.0),
            meeting(1).meet(doors[1].sockets, others(places, 1), 1.0),
            return_exceptions=True,
        )

    with worlds(2) as (doors, places):
        caller, called = asyncio.run(meet())
    assert isinstance(caller, CasyncError) and "does not know this job's secret" in str(caller)
    assert isinstance(called, CasyncError) and "not connected with ranks [0]" in str(called)


def test_strangers_that_hang_keep_nobody_out() -> None:
    async def meet():
        strangers = [socket.create_connection(doors[1].sockets[0].getsockname()) for _ in range(5)]
        strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        strangers[1].sendall(b"Ca")
        begun = time.monotonic()
        try:
            return await asyncio.gather(
                meeting(0).meet(doors[0].sockets, others(places, 0), 10.0),
                meeting(1).meet(doors[1].sockets, others(places, 1), 10.0),
            ), time.monotonic() - begun
        finally:
            for stranger in strangers:
                stranger.close()

    with worlds(2) as (doors, places):
        places[1] = [places[1][-1]]
        made, took = asyncio.run(meet())
    assert took < 5
    for of_rank in made:
        for sockets in of_rank.values():
            for each in sockets:
                each.close()


def test_a_place_that_cannot_be_reached_is_named() -> None:
    with worlds(2) as (doors, places):
        nobody = Place(socket.AF_INET, ("127.0.0.1", 1))
        with pytest.raises(CasyncError, match=r"cannot connect to rank 1 \(127.0.0.1 port 1: Connection refused"):
            asyncio.run(meeting(0).meet(doors[0].sockets, {1: [nobody]}, 10.0))


def test_a_rank_of_this_host_is_also_found_by_its_address() -> None:
    """Ranks of one host name may have networks of their own, in which a socket of the other's is not to be seen."""
    with worlds(2) as (doors, places):
        hidden = [Place(socket.AF_UNIX, "\0casync-nobody"), places[1][-1]]

        async def meet():
            return await asyncio.gather(
                meeting(0).meet(doors[0].sockets, {1: hidden}, 10.0),
                meeting(1).meet(doors[1].sockets, others(places, 1), 10.0),
            )

        made = asyncio.run(meet())
    assert all(each.family == socket.AF_INET for each in made[0][1])
    for of_rank, peer in zip(made, (1, 0), strict=True):
        for each in of_rank[peer]:
            each.close()


def test_a_flood_of_connections_keeps_nobody_out() -> None:
    over = threading.Event()

    def flood(place) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), socket.create_connection(place, timeout=1) as stranger:
                stranger.sendall(b"CaSync02" + b"x" * 42)
            time.sleep(0.001)

    async def meet():
        return await asyncio.gather(*(
            meeting(me).meet(doors[me].sockets, others(places, me), 60.0) for me in range(3)
        ))  # fmt: skip

    with worlds(3) as (doors, places):
        strangers = [threading.Thread(target=flood, args=(door.sockets[0].getsockname(),)) for door in doors]
        for stranger in strangers:
            stranger.start()
        try:
            made = asyncio.run(meet())
        finally:
            over.set()
            for stranger in strangers:
                stranger.join()
    assert all(len(sockets) >= 3 for of_rank in made for sockets in of_rank.values())
    for of_rank in made:
        for sockets in of_rank.values():
            for each in sockets:
                each.close()


def test_a_call_that_is_cut_off_is_made_again() -> None:
    """By a rank whose places were all taken, as it seems to the caller; at every point of the greeting."""

    async def cut(door: socket.socket, after: int) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(door)
        with connection:
            connection.setblocking(False)
            while after > 0:
                after -= len(await asyncio.get_running_loop().sock_recv(connection, after))

    async def meet():
        caller = asyncio.create_task(meeting(0).meet(doors[0].sockets, others(places, 0), 30.0))
        for after in (0, 1, Hello.SIZE):
            await cut(doors[1].sockets[0], after)
        return await asyncio.gather(caller, meeting(1).meet(doors[1].sockets, others(places, 1), 30.0))

    with worlds(2) as (doors, places):
        places[1] = [places[1][-1]]
        made = asyncio.run(meet())
    for of_rank in made:
        for sockets in of_rank.values():
            for each in sockets:
                each.close()


def test_of_two_networks_one_may_be_closed() -> None:
    """Nothing answers there, not even to say no."""
    with worlds(2) as (doors, places), socket.socket() as closed, contextlib.ExitStack() as stack:
        closed.bind(("127.0.0.1", 0))
        closed.listen(0)
        for _ in range(4):
            call = stack.enter_context(socket.socket())
            call.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                call.connect(closed.getsockname())
        silent = Place(socket.AF_INET, closed.getsockname())

        async def meet():
            return await asyncio.gather(
                meeting(0).meet(doors[0].sockets, {1: [silent, places[1][-1]]}, 30.0),
                meeting(1).meet(doors[1].sockets, others(places, 1), 30.0),
            )

        made = asyncio.run(meet())
    for of_rank in made:
        for sockets in of_rank.values():
            for each in sockets:
                each.close()


def test_another_rank_at_that_place_is_not_taken_for_the_one_that_was_meant() -> None:
    async def meet():
        return await asyncio.gather(
            meeting(0).meet(doors[0].sockets, {1: places[2], 2: places[2]}, 1.5),
            meeting(2).meet(doors[2].sockets, {0: places[0]}, 1.5),
            return_exceptions=True,
        )

    with worlds(3) as (doors, places):
        caller, called = asyncio.run(meet())
    assert isinstance(caller, CasyncError) and "not connected with ranks [1]" in str(caller)
    for sockets in called.values():
        for each in sockets:
            each.close()


def test_a_connection_notices_loss_and_waits_for_who_does_not_read() -> None:
    config = Config(timeout_s=600.0, peer_timeout_s=8.0)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        notice_loss(connection, config)
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) >= 600_000
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        notice_loss(connection, Config(timeout_s=1e9))
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2**31 - 1
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        notice_loss(connection, config)  # the kernel knows
