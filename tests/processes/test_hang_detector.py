"""Hang detection and failure attribution from recorded messages: no processes, and a clock that the test sets."""

import pytest

from deeppool.errors import RankFailedError, RankRefusedError
from deeppool.processes.failure_attribution import failure_error, root_cause
from deeppool.processes.hang_detector import SILENT_SECONDS, HangDetector, RankStatus

NAMES = ("rank 0", "rank 1", "rank 2")
FORWARD = "forward of stage conv1 (update 7)"
SYNC = "gradient synchronisation of stage conv1 (update 7)"
TIMEOUT, RENDEZVOUS_TIMEOUT = 20.0, 5.0


def heartbeat(what: str, since: float, *, waits: bool = False, at: str | None = None, seconds: float = 0.0) -> dict:
    return {"event": "heartbeat", "what": what, "since": since, "waits": waits, "at": at, "seconds": seconds}


def make_detector() -> HangDetector:
    return HangDetector({name: RankStatus(name) for name in NAMES})


def beat(detector: HangDetector, heartbeats: dict[str, dict], seconds: int) -> None:
    """Advances the clock while some ranks send the same heartbeat every second."""
    for second in range(1, seconds + 1):
        detector.clock += 1.0
        for name, content in heartbeats.items():
            detector.record(name, {**content, "seconds": second})


def describe_hang(detector: HangDetector, finished: tuple[str, ...] = ()) -> str | None:
    error = detector.hung(TIMEOUT, RENDEZVOUS_TIMEOUT, finished, "while it trained")
    return None if error is None else str(error)


STUCK = {
    "rank 0": heartbeat(SYNC, 3.0, waits=True),
    "rank 1": heartbeat("reading the samples of stage conv1 (update 7)", 4.0, at="mine.py:12 in __getitem__"),
    "rank 2": heartbeat(SYNC, 5.0, waits=True),
}


def test_a_start_names_the_ranks_that_others_wait_for_and_what_they_do() -> None:
    detector = HangDetector({f"rank {number}": RankStatus(f"rank {number}") for number in range(5)})
    assert detector.describe_missing(()) == "rank 0 (its start), rank 1 (its start), and 3 more"
    for name in ("rank 0", "rank 2", "rank 3"):
        detector.record(name, heartbeat("meeting the other ranks", 1.0, waits=True))
    detector.record("rank 4", heartbeat("making the model and the data", 1.0))
    assert detector.describe_missing(()) == "rank 1 (its start), rank 4 (making the model and the data)"
    assert detector.describe_missing(("rank 1",)) == "rank 4 (making the model and the data)"
    # Where all wait for one another, none is better than the others.
    assert detector.describe_missing(("rank 1", "rank 4")) == (
        "rank 0 (meeting the other ranks), rank 2 (meeting the other ranks), and 1 more"
    )


def test_the_rank_that_does_not_wait_for_others_is_the_one_that_hangs() -> None:
    detector = make_detector()
    beat(detector, STUCK, 20)
    assert describe_hang(detector) is None
    beat(detector, STUCK, 2)
    text = describe_hang(detector)
    assert text.startswith(
        "rank 1 hangs: it has been in reading the samples of stage conv1 (update 7) for 2 s, at mine.py:12 in "
        "__getitem__, waited for by rank 0 in gradient synchronisation"
    )
    assert "while it trained" in text
    assert "\n" not in text


def test_a_rank_without_heartbeat_is_reported_before_one_that_computes() -> None:
    detector = make_detector()
    beat(detector, STUCK, 2)
    beat(detector, {name: STUCK[name] for name in ("rank 1", "rank 2")}, 21)
    assert describe_hang(detector).startswith("rank 0 hangs: no heartbeat for 21 s")


def test_a_stopped_rank_is_found_although_the_others_make_progress() -> None:
    detector = make_detector()
    beat(detector, STUCK, 1)
    for second in range(int(SILENT_SECONDS) + 1):
        assert describe_hang(detector) is None
        beat(detector, {name: {**STUCK[name], "since": second} for name in ("rank 0", "rank 1")}, 1)
    assert describe_hang(detector).startswith("rank 2 hangs: no heartbeat for 31 s")


def test_ranks_that_all_wait_cannot_reach_one_another() -> None:
    detector = make_detector()
    waiting = {name: heartbeat(SYNC, 1.0, waits=True) for name in NAMES}
    beat(detector, waiting, 6)
    assert describe_hang(detector) is None
    beat(detector, waiting, 1)
    text = describe_hang(detector)
    assert text.startswith("no rank made progress for 6 s while it trained, each waits for another: rank 0 in gradient")
    assert "is the network between them up?" in text


def test_a_rank_that_still_imports_is_waited_for() -> None:
    detector = make_detector()
    meeting = {name: heartbeat("meeting the other ranks", 1.0, waits=True) for name in NAMES[:2]}
    beat(detector, meeting, 20)
    assert describe_hang(detector) is None
    beat(detector, meeting, 2)
    assert describe_hang(detector).startswith("rank 2 sent nothing for 21 s, waited for by rank 0 in meeting")


def test_a_rank_that_completed_its_command_is_not_reported() -> None:
    detector = make_detector()
    beat(detector, STUCK, 1)
    beat(detector, {"rank 0": STUCK["rank 0"], "rank 2": {**STUCK["rank 2"], "waits": False}}, 21)
    assert describe_hang(detector, finished=("rank 1",)).startswith("rank 2 hangs")


@pytest.mark.parametrize(
    "progress",
    [{"event": "step", "step": 7}, heartbeat(FORWARD, 99.0)],
    ids=["a message", "a heartbeat of a new activity"],
)
def test_progress_of_one_rank_restarts_the_timeout_of_all(progress: dict) -> None:
    detector = make_detector()
    beat(detector, STUCK, 20)
    detector.record("rank 0", progress)
    beat(detector, STUCK, 2)
    assert describe_hang(detector) is None or progress["event"] == "heartbeat"
    assert detector.progress >= 20


def test_the_last_activity_of_a_rank_is_not_that_of_a_heartbeat_many_updates_ago() -> None:
    detector = make_detector()
    detector.record("rank 1", heartbeat("reading the samples of stage conv1 (update 82)", 1.0, waits=True, at="x.py:1"))
    for update in range(82, 106):
        detector.record("rank 1", {"event": "step", "step": update, "seconds": 0.001})
    assert (detector.ranks["rank 1"].what, detector.ranks["rank 1"].waits) == ("training, after update 105", False)
    error = failure_error(
        list(detector.ranks.values()), detector.ranks["rank 1"], "was killed by signal 9", "while it trained", 0
    )
    assert "last seen in training, after update 105;" in str(error)
    detector.record("rank 1", heartbeat(FORWARD, 2.0))
    assert detector.ranks["rank 1"].what == FORWARD


# -- failure attribution ----------------------------------------------------------------------------


def failed(kind: str, text: str, doing: str = FORWARD) -> dict:
    return {"event": "failed", "kind": kind, "text": text, "doing": doing, "traceback": f"trace of {text}"}


def attribute(
    codes: tuple[int | None, ...], failures: dict[str, dict], reason: str = "", oom: int = 0
) -> RankFailedError:
    ranks = [RankStatus(name, failure=failures.get(name), heartbeat=heartbeat(FORWARD, 1.0)) for name in NAMES]
    first = root_cause(ranks, dict(zip(NAMES, codes, strict=True)))
    return failure_error(ranks, first, reason, "while it trained", oom)


LOST = failed("connection", "lost its connection to another rank in the sync (reset)", SYNC)


def test_the_killed_rank_is_the_root_cause_not_the_one_that_lost_its_connection() -> None:
    error = attribute((1, -9, None), {"rank 0": LOST}, "was killed by signal 9")
    assert str(error) == (
        f"rank 1 was killed by signal 9 while it trained, last seen in {FORWARD}, missed by rank 0 in {SYNC}; "
        "the other ranks were stopped (run again)"
    )


@pytest.mark.parametrize("others", [{}, {"rank 0": failed("error", "failed")}])
def test_of_several_ended_ranks_the_killed_one_is_the_root_cause(others: dict) -> None:
    assert str(attribute((1, -9, 1), others, "was killed by signal 9")).startswith("rank 1 was killed by signal 9")
    assert str(attribute((1, None, 1), others)).startswith("rank 0")


def test_a_rank_that_reported_its_failure_does_not_count_as_killed() -> None:
    error = attribute((-6, 0, None), {"rank 0": LOST}, "ended with exit code 0")
    assert str(error).startswith("rank 1 ended with exit code 0 while it trained")


def test_a_kill_when_the_kernel_had_no_memory_says_so_and_what_to_do() -> None:
    error = attribute((None, None, -9), {}, "was killed by signal 9", oom=1)
    assert "rank 2 was killed by signal 9, probably by the kernel because memory ran out, while" in str(error)
    assert "smaller global batch" in str(error)
    assert "probably" not in str(attribute((None, None, -11), {}, "was killed by signal 11", oom=1))


def test_an_own_failure_precedes_a_lost_connection_and_has_its_traceback() -> None:
    error = attribute((1, None, None), {"rank 0": LOST, "rank 2": failed("memory", "ran out of memory in x: 1 MiB")})
    assert str(error).startswith("rank 2 ran out of memory in x: 1 MiB while it trained")
    assert not isinstance(error, RankRefusedError)
    assert error.__notes__ == ["of rank 2: trace of ran out of memory in x: 1 MiB"]


def test_lost_connections_alone_name_all_who_lost_them() -> None:
    error = attribute((1, 1, None), {"rank 0": LOST, "rank 1": LOST})
    assert str(error).startswith("rank 0 lost its connection to another rank in the sync (reset); rank 1 lost its")
    assert "is the network between them up?" in str(error)


def test_a_refusal_is_reported_as_it_is_and_is_final() -> None:
    error = attribute((None, None, None), {"rank 1": failed("refusal", "cannot write x: disk full")})
    assert isinstance(error, RankRefusedError)
    assert str(error).startswith("rank 1 gave up while it trained: cannot write x: disk full; the other ranks")


def test_an_end_without_a_message_is_the_root_cause_with_any_exit_code() -> None:
    error = attribute((None, 0, None), {"rank 0": LOST}, "ended with exit code 0")
    assert str(error).startswith("rank 1 ended with exit code 0 while it trained")


def test_the_error_has_the_rank_that_is_to_blame_if_it_is_one() -> None:
    assert attribute((1, None, -9), {"rank 0": LOST}).rank == 2
    assert attribute((1, 1, None), {"rank 0": LOST, "rank 1": LOST}).rank is None
    assert attribute((None, None, None), {"rank 1": failed("refusal", "cannot write x")}).rank == 1

    def hung(heartbeats: dict[str, dict]) -> RankFailedError:
        detector = make_detector()
        beat(detector, heartbeats, 22)
        error = detector.hung(TIMEOUT, RENDEZVOUS_TIMEOUT, (), "while it trained")
        assert error is not None
        return error

    assert hung(STUCK).rank == 1
    assert hung({name: {**content, "waits": False} for name, content in STUCK.items()}).rank is None
    assert hung({name: {**content, "waits": True} for name, content in STUCK.items()}).rank is None
