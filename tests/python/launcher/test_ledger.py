"""What a rank's end means for the others. The clock is a literal."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from casync.launcher.actions import EndMpirun, Kill, Policy, Release, Say, Signal, Start
from casync.launcher.ledger import Ledger


def started(size: int = 4, policy: Policy | None = None, initialized: bool = True) -> Ledger:
    book = Ledger(size, policy or Policy())
    for rank in range(size):
        book.hello(rank, f"h{rank // 2}", 100 + rank)
        if initialized:
            book.initialized(rank)
    return book


def kills(actions: Sequence[object]) -> list[int]:
    return [a.rank for a in actions if isinstance(a, Kill)]


def test_ranks_start_when_all_have_come() -> None:
    book = Ledger(2, Policy())
    assert Start() not in book.hello(1, "h", 1)
    assert Start() in book.hello(0, "h", 2)


def test_all_well() -> None:
    book = started()
    for rank in range(4):
        assert Release(rank) in book.exited(rank, 0, 1.0)
    assert not book.done(1.0)
    book.mpirun_ended(0, 1.1)
    assert book.done(1.1)
    assert (book.verdict().status, book.verdict().text) == (0, "")


def test_the_first_rank_that_failed_is_named_with_its_host() -> None:
    book = started()
    book.exited(2, -9, 1.0)
    for rank in (0, 1, 3):
        book.exited(rank, 1, 1.5)
    verdict = book.verdict()
    assert verdict.status == 137
    others = "then ranks 0, 1, 3 exited with status 1"
    assert verdict.text == f"the first rank to fail: rank 2 on host h1 was killed by SIGKILL; {others}"


def test_survivors_that_leave_with_0_do_not_hide_the_failure() -> None:
    book = started()
    book.exited(1, 3, 1.0)
    for rank in (0, 2, 3):
        book.exited(rank, 0, 1.1)
    book.mpirun_ended(0, 1.2)
    assert book.verdict().status == 3
    assert "rank 1 on host h0 exited with status 3" in book.verdict().text


def test_others_have_a_grace_to_leave_by_themselves() -> None:
    book = started()
    book.exited(2, -9, 1.0)
    book.exited(0, 1, 2.0)
    assert book.next_deadline() == 16.0
    assert kills(book.tick(15.9)) == []
    assert kills(book.tick(16.0)) == [1, 3]
    assert "ranks 1, 3 ended by casyncrun" in book.verdict().text


def test_ranks_still_in_init_have_a_shorter_grace() -> None:
    book = started(initialized=False)
    book.initialized(0)
    book.exited(2, 1, 1.0)
    assert kills(book.tick(6.0)) == [1, 3]
    assert kills(book.tick(15.9)) == []
    assert kills(book.tick(16.0)) == [0]


def test_a_rank_that_casyncrun_killed_is_no_cause() -> None:
    book = started()
    book.stopped(3, signal.SIGSTOP, 0.5)
    book.exited(0, 1, 5.0)
    assert book.next_deadline() == 5.0
    assert kills(book.tick(5.0)) == [3]  # it cannot leave by itself, so nobody waits for it
    assert kills(book.tick(20.0)) == [1, 2]
    for rank in (1, 2, 3):
        book.exited(rank, -9, 20.1)
    assert "first rank to fail: rank 3 on host h1 is stopped by SIGSTOP" in book.verdict().text
    assert book.verdict().status == 1


def test_a_rank_that_was_continued_is_no_cause() -> None:
    book = started()
    book.stopped(3, signal.SIGSTOP, 0.5)
    book.stopped(3, 0, 0.5)
    book.exited(0, 1, 5.0)
    assert "first rank to fail: rank 0" in book.verdict().text


def test_a_ranks_own_word_comes_before_its_peers_exits() -> None:
    book = started()
    book.failing(2, "ValueError: bad label", 1.0)
    book.exited(0, 1, 1.1)
    book.exited(2, 1, 1.4)
    assert "first rank to fail: rank 2 on host h1 exited with status 1 (ValueError: bad label)" in book.verdict().text


def test_a_rank_that_does_not_answer_is_named_before_those_that_gave_up_on_it() -> None:
    book = started()
    book.accused(2, "no sign of life for 8 s")
    book.exited(0, 1, 1.0)
    text = "first rank to fail: rank 2 on host h1 does not answer (no sign of life for 8 s); then rank 0 exited"
    assert text in book.verdict().text
    book.lost(2, 20.0)
    assert "rank 2 on host h1 was lost: its connection" in book.verdict().text
    assert book.verdict().status == 1


def test_an_accusation_does_not_displace_a_failure_that_was_seen() -> None:
    book = started()
    book.exited(1, -9, 1.0)
    book.accused(2, "reset")
    book.accused(7, "no such rank")
    book.exited(0, 1, 1.1)
    assert "first rank to fail: rank 1 on host h0 was killed by SIGKILL" in book.verdict().text


def test_how_the_accused_died_is_said_when_it_is_known() -> None:
    book = started()
    book.accused(2, "connection reset")
    book.exited(0, 1, 1.0)
    book.exited(2, -9, 1.1)
    assert "first rank to fail: rank 2 on host h1 was killed by SIGKILL (connection reset)" in book.verdict().text
    assert book.verdict().status == 137


def test_a_lost_wrapper_is_a_failure() -> None:
    book = started()
    book.lost(1, 1.0)
    assert "rank 1 on host h0 was lost" in book.verdict().text
    assert book.verdict().status == 1


def test_without_fault_tolerance_wrappers_are_held_until_all_have_ended() -> None:
    book = started(2, Policy(hold=True))
    assert Release(1) not in book.exited(1, 3, 1.0)
    assert {Release(0), Release(1)} <= set(book.exited(0, 1, 2.0))


def test_an_interrupt_is_passed_on_and_after_a_grace_all_are_killed() -> None:
    book = started()
    assert Signal(signal.SIGINT) in book.interrupted(signal.SIGINT, 1.0)
    book.exited(0, 1, 1.5)
    assert book.next_deadline() == 6.0
    assert kills(book.tick(6.0)) == [1, 2, 3]
    assert book.verdict().status == 130


def test_ranks_that_handle_an_interrupt_end_the_job_well() -> None:
    book = started(2)
    book.interrupted(signal.SIGTERM, 1.0)
    book.exited(0, 0, 2.0)
    book.exited(1, 0, 2.0)
    assert (book.verdict().status, book.verdict().text) == (0, "")


def test_a_second_interrupt_kills_at_once_but_an_echo_of_the_first_does_not() -> None:
    book = started()
    book.interrupted(signal.SIGTERM, 1.0)
    assert book.interrupted(signal.SIGTERM, 1.1) == []
    assert kills(book.interrupted(signal.SIGTERM, 2.0)) == [0, 1, 2, 3]


def test_ranks_that_do_not_start_are_named() -> None:
    book = Ledger(3, Policy(start_timeout=10.0), began=5.0)
    book.hello(1, "h", 1)
    assert book.next_deadline() == 15.0
    actions = book.tick(15.0)
    assert kills(actions) == [1]
    assert EndMpirun(signal.SIGTERM) in actions
    assert kills(book.hello(0, "h", 2)) == [0]  # too late
    book.exited(1, -9, 15.1)
    book.mpirun_ended(143, 15.2)
    assert book.verdict().status == 1
    assert "2 of 3 ranks (0, 2) did not start within 10 s" in book.verdict().text


def test_mpirun_that_fails_before_the_start_is_the_cause() -> None:
    book = Ledger(2, Policy())
    book.mpirun_ended(255, 1.0)
    assert book.done(1.0)
    assert "mpirun failed with exit code 255" in book.verdict().text
    assert book.verdict().status == 255


def test_mpirun_that_dies_under_its_ranks_is_the_cause() -> None:
    book = started(2)
    book.mpirun_ended(-9, 1.0)
    assert not [a for rank in (0, 1) for a in book.exited(rank, -15, 1.1) if isinstance(a, Say) and a.loud]
    assert book.verdict().status == 137
    assert "mpirun itself was killed by SIGKILL" in book.verdict().text


def test_mpirun_that_does_not_end_is_ended() -> None:
    book = started(1, Policy(end_grace=3.0))
    book.exited(0, 0, 1.0)
    assert book.next_deadline() == 4.0
    assert EndMpirun(signal.SIGTERM) in book.tick(4.0)
    assert EndMpirun(signal.SIGKILL) in book.tick(7.0)
    book.mpirun_ended(-9, 7.1)
    assert book.verdict().status == 0


def test_ranks_beyond_reach_do_not_keep_the_job() -> None:
    book = started(2)
    book.exited(0, 1, 1.0)
    book.tick(16.0)  # rank 1 is told to end, and is never heard of again
    book.tick(19.0)
    assert EndMpirun(signal.SIGKILL) in book.tick(22.0)
    book.mpirun_ended(-9, 22.0)
    assert not book.done(22.0)
    assert book.done(24.0)


def test_a_stopped_rank_that_all_gave_up_ends_the_job_though_the_others_left_with_0() -> None:
    book = started()
    book.stopped(2, signal.SIGSTOP, 0.5)
    book.accused(2, "no sign of life for 8 s")
    for rank in (0, 1, 3):
        book.exited(rank, 0, 9.0)
    assert kills(book.tick(9.0)) == [2]
    book.exited(2, -9, 9.1)
    book.mpirun_ended(0, 9.2)
    assert book.verdict().status != 0
    assert "rank 2 on host h1" in book.verdict().text


def test_what_ends_a_job_is_said_once_at_its_end() -> None:
    book = started()
    said = [a for a in book.exited(2, -9, 1.0) if isinstance(a, Say) and a.loud]
    for rank in (0, 1, 3):
        book.gave_up(rank, "PeerFailureError: rank 2 is gone")
        said += [a for a in book.exited(rank, 1, 1.5) if isinstance(a, Say) and a.loud]
    assert said == []
    text = "the first rank to fail: rank 2 on host h1 was killed by SIGKILL; then ranks 0, 1, 3 exited with status 1"
    assert book.verdict().text == text


def test_a_rank_that_left_because_of_another_says_which() -> None:
    book = started(2)
    book.exited(1, 0, 1.0)
    book.gave_up(0, "AbortedError: rank 1 has shut down without submitting tensor w")
    book.exited(0, 1, 1.1)
    assert "rank 0 on host h0 exited with status 1 (AbortedError: rank 1 has shut down without" in book.verdict().text


# How a job starts.


def enter(book: Ledger, rank: int, now: float) -> list[object]:
    return list(book.entered(rank, "MPI", range(book.size), 60.0, 600.0, now))


def test_a_rank_that_is_stopped_before_init_ends_the_job() -> None:
    book = started(3, Policy(start_timeout=10.0), initialized=False)
    book.stopped(1, signal.SIGSTOP, 2.0)
    enter(book, 0, 3.0)
    enter(book, 2, 4.0)
    assert book.next_deadline() == 12.0
    assert kills(book.tick(11.9)) == []
    assert kills(book.tick(12.0)) == [0, 1, 2]
    text = book.verdict().text
    assert "rank 1 on host h0 was stopped by SIGSTOP before it was through init(), for 10 s (--start-timeout)" in text
    assert book.verdict().status == 1


def test_a_rank_that_goes_on_before_init_does_not() -> None:
    book = started(2, Policy(start_timeout=10.0), initialized=False)
    book.stopped(1, signal.SIGSTOP, 2.0)
    book.stopped(1, 0, 11.0)
    assert book.next_deadline() is None
    assert kills(book.tick(100.0)) == []


def test_a_rank_that_loads_data_is_waited_for_and_named() -> None:
    book = started(4, Policy(start_timeout=10.0), initialized=False)
    enter(book, 0, 3.0)
    enter(book, 2, 5.0)
    assert book.next_deadline() == 63.0
    assert [a.text for a in book.tick(63.0) if isinstance(a, Say) and a.loud] == [
        "ranks 0, 2 waited 60 s in init() for rank 1 on host h0, rank 3 on host h1. "
        "The job ends when it is 600 s (CASYNC_TIMEOUT_SECONDS)"
    ]
    enter(book, 1, 500.0)
    assert book.next_deadline() == 603.0
    assert kills(book.tick(602.0)) == []
    assert kills(book.tick(603.0)) == [0, 1, 2, 3]
    cause = "rank 3 on host h1 did not come to init() within 600 s (CASYNC_TIMEOUT_SECONDS), where ranks 0, 1, 2 waited"
    assert cause in book.verdict().text


def test_when_all_have_come_nobody_is_named() -> None:
    book = started(2, initialized=False)
    enter(book, 0, 1.0)
    enter(book, 1, 50.0)
    book.met("MPI")
    assert book.next_deadline() is None


def test_a_rank_that_has_gone_before_init_ends_the_job_at_once() -> None:
    for waits_before in (True, False):
        book = started(2, initialized=False)
        actions = enter(book, 0, 1.0) if waits_before else []
        actions += book.exited(1, 0, 2.0)
        actions += [] if waits_before else enter(book, 0, 3.0)
        assert kills(actions) == [0]
        cause = "rank 1 on host h0 exited with status 0 before it came to init(), where rank 0 waited"
        assert cause in book.verdict().text
        assert book.verdict().status == 1


# How it ends.


def test_a_rank_that_is_stopped_while_all_others_leave_ends_the_job() -> None:
    book = started(3, Policy(start_timeout=10.0))
    book.leaving(0, 1.0)
    book.stopped(1, signal.SIGSTOP, 2.0)
    assert book.next_deadline() is None  # rank 2 still works, and notices by itself
    book.leaving(2, 5.0)
    assert book.next_deadline() == 15.0
    assert kills(book.tick(15.0)) == [0, 1, 2]
    assert "rank 1 on host h0 was stopped by SIGSTOP while all others have left, for 10 s" in book.verdict().text


def test_a_stopped_rank_that_is_left_alone_ends_the_job() -> None:
    book = started(2, Policy(start_timeout=10.0))
    book.leaving(0, 1.0)
    book.leaving(1, 1.0)
    book.exited(0, 0, 1.2)
    book.stopped(1, signal.SIGSTOP, 1.3)
    assert kills(book.tick(11.3)) == [1]
    assert book.verdict().status == 1


def test_a_rank_that_exits_without_leaving_mpi_is_not_waited_for() -> None:
    book = started(3)
    book.exited(1, 0, 1.0)
    assert kills(book.leaving(0, 2.0)) == []  # rank 2 still works
    assert kills(book.leaving(2, 3.0)) == [0, 2]
    assert "rank 1 on host h0 exited with status 0 but did not leave MPI" in book.verdict().text


def test_ranks_that_use_one_gpu_are_named_once() -> None:
    book = started()
    assert book.uses_gpu(0, "GPU-a") == book.uses_gpu(0, "GPU-a") == book.uses_gpu(2, "GPU-b") == []
    (warning,) = book.uses_gpu(1, "GPU-a")
    assert isinstance(warning, Say) and warning.loud
    assert warning.text.startswith("ranks 0, 1 on host h0 use one GPU, GPU-a. If ")
    assert "call set_device(hvd.local_rank())" in warning.text
    assert book.uses_gpu(3, "GPU-b") == []
