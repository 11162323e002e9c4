"""Who hangs, from what was heard of the ranks and when: no process, and a clock that the test moves."""

import pytest

from deeppool.errors import RankFailedError, RankRefusedError
from deeppool.processes.failure_attribution import failure_error, root_cause
from deeppool.processes.hang_detector import MUTE_SECONDS, HangDetector, RankStatus

NAMES = ("rank 0", "rank 1", "rank 2")
FORWARD = "forward of stage conv1 (update 7)"
SYNC = "gradient synchronisation of stage conv1 (update 7)"
PATIENCE, MEETING = 20.0, 5.0


def pulse(what: str, since: float, *, waits: bool = False, at: str | None = None, seconds: float = 0.0) -> dict:
    return {"event": "pulse", "what": what, "since": since, "waits": waits, "at": at, "seconds": seconds}


def vigil() -> HangDetector:
    return HangDetector({name: RankStatus(name) for name in NAMES})


def beat(watched: HangDetector, pulses: dict[str, dict], seconds: int) -> None:
    """Lets seconds pass in which some ranks give the same sign of life each second."""
    for second in range(1, seconds + 1):
        watched.clock += 1.0
        for name, told in pulses.items():
            watched.hear(name, {**told, "seconds": second})


def verdict(watched: HangDetector, finished: tuple[str, ...] = ()) -> str | None:
    return watched.hung(PATIENCE, MEETING, finished, "while it trained")


STUCK = {
    "rank 0": pulse(SYNC, 3.0, waits=True),
    "rank 1": pulse("reading the samples of stage conv1 (update 7)", 4.0, at="mine.py:12 in __getitem__"),
    "rank 2": pulse(SYNC, 5.0, waits=True),
}


def test_the_rank_that_does_not_wait_for_others_is_the_one_that_hangs() -> None:
    watched = vigil()
    beat(watched, STUCK, 20)
    assert verdict(watched) is None
    beat(watched, STUCK, 2)
    told = verdict(watched)
    assert told.startswith(
        "rank 1 hangs: it has been in reading the samples of stage conv1 (update 7) for 2 s, at mine.py:12 in "
        "__getitem__, waited for by rank 0 in gradient synchronisation"
    )
    assert "while it trained" in told
    assert "\n" not in told


def test_a_rank_that_gives_no_sign_of_life_is_blamed_before_one_that_computes() -> None:
    watched = vigil()
    beat(watched, STUCK, 2)
    beat(watched, {name: STUCK[name] for name in ("rank 1", "rank 2")}, 21)
    assert verdict(watched).startswith("rank 0 hangs: it has given no sign of life for 21 s")


def test_a_stopped_rank_is_found_although_the_others_get_on() -> None:
    watched = vigil()
    beat(watched, STUCK, 1)
    for second in range(int(MUTE_SECONDS) + 1):
        assert verdict(watched) is None
        beat(watched, {name: {**STUCK[name], "since": second} for name in ("rank 0", "rank 1")}, 1)
    assert verdict(watched).startswith("rank 2 hangs: it has given no sign of life for 31 s")


def test_ranks_that_all_wait_cannot_reach_one_another() -> None:
    watched = vigil()
    waiting = {name: pulse(SYNC, 1.0, waits=True) for name in NAMES}
    beat(watched, waiting, 6)
    assert verdict(watched) is None
    beat(watched, waiting, 1)
    told = verdict(watched)
    assert told.startswith("no rank got on for 6 s while it trained, each waits for another: rank 0 in gradient")
    assert "is the network between them up?" in told


def test_a_rank_that_still_imports_is_waited_for() -> None:
    watched = vigil()
    meeting = {name: pulse("meeting the other ranks", 1.0, waits=True) for name in NAMES[:2]}
    beat(watched, meeting, 20)
    assert verdict(watched) is None
    beat(watched, meeting, 2)
    assert verdict(watched).startswith("rank 2 said nothing for 21 s, waited for by rank 0 in meeting")


def test_a_rank_that_did_what_it_was_told_is_not_blamed() -> None:
    watched = vigil()
    beat(watched, STUCK, 1)
    beat(watched, {"rank 0": STUCK["rank 0"], "rank 2": {**STUCK["rank 2"], "waits": False}}, 21)
    assert verdict(watched, finished=("rank 1",)).startswith("rank 2 hangs")


@pytest.mark.parametrize(
    "progress", [{"event": "step"}, pulse(FORWARD, 99.0)], ids=["a message", "a pulse of something new"]
)
def test_progress_of_one_rank_is_hope_for_all(progress: dict) -> None:
    watched = vigil()
    beat(watched, STUCK, 20)
    watched.hear("rank 0", progress)
    beat(watched, STUCK, 2)
    assert verdict(watched) is None or progress["event"] == "pulse"
    assert watched.progress >= 20


# -- deaths -----------------------------------------------------------------------------------------


def failed(kind: str, text: str, doing: str = FORWARD) -> dict:
    return {"event": "failed", "kind": kind, "text": text, "doing": doing, "traceback": f"trace of {text}"}


def blame(codes: tuple[int | None, ...], failures: dict[str, dict], fate: str = "", oom: int = 0) -> RankFailedError:
    ranks = [RankStatus(name, failure=failures.get(name), pulse=pulse(FORWARD, 1.0)) for name in NAMES]
    first = root_cause(ranks, dict(zip(NAMES, codes, strict=True)))
    return failure_error(ranks, first, fate, "while it trained", oom)


LOST = failed("connection", "lost its connection to another rank in the sync (reset)", SYNC)


def test_who_was_killed_is_blamed_and_not_who_missed_it() -> None:
    error = blame((1, -9, None), {"rank 0": LOST}, "was killed by signal 9")
    assert str(error) == (
        f"rank 1 was killed by signal 9 while it trained, last seen in {FORWARD}, missed by rank 0 in {SYNC}; "
        "the other ranks were stopped (run again)"
    )


@pytest.mark.parametrize("others", [{}, {"rank 0": failed("error", "failed")}])
def test_of_several_that_ended_the_killed_one_is_blamed(others: dict) -> None:
    assert str(blame((1, -9, 1), others, "was killed by signal 9")).startswith("rank 1 was killed by signal 9")
    assert str(blame((1, None, 1), others)).startswith("rank 0")


def test_who_told_why_it_ends_was_not_killed() -> None:
    error = blame((-6, 0, None), {"rank 0": LOST}, "ended with exit code 0")
    assert str(error).startswith("rank 1 ended with exit code 0 while it trained")


def test_a_kill_when_the_kernel_had_no_memory_says_so_and_what_to_do() -> None:
    error = blame((None, None, -9), {}, "was killed by signal 9", oom=1)
    assert "rank 2 was killed by signal 9, probably by the kernel because memory ran out, while" in str(error)
    assert "smaller global batch" in str(error)
    assert "probably" not in str(blame((None, None, -11), {}, "was killed by signal 11", oom=1))


def test_an_own_fault_is_blamed_before_a_lost_connection_and_brings_its_traceback() -> None:
    error = blame((1, None, None), {"rank 0": LOST, "rank 2": failed("memory", "ran out of memory in x: 1 MiB")})
    assert str(error).startswith("rank 2 ran out of memory in x: 1 MiB while it trained")
    assert not isinstance(error, RankRefusedError)
    assert error.__notes__ == ["of rank 2: trace of ran out of memory in x: 1 MiB"]


def test_lost_connections_alone_name_all_who_lost_them() -> None:
    error = blame((1, 1, None), {"rank 0": LOST, "rank 1": LOST})
    assert str(error).startswith("rank 0 lost its connection to another rank in the sync (reset); rank 1 lost its")
    assert "is the network between them up?" in str(error)


def test_a_refusal_is_told_as_it_is_and_is_final() -> None:
    error = blame((None, None, None), {"rank 1": failed("refusal", "cannot write x: disk full")})
    assert isinstance(error, RankRefusedError)
    assert str(error).startswith("rank 1 gave up while it trained: cannot write x: disk full; the other ranks")


def test_an_end_without_a_word_is_blamed_whatever_its_exit_code() -> None:
    error = blame((None, 0, None), {"rank 0": LOST}, "ended with exit code 0")
    assert str(error).startswith("rank 1 ended with exit code 0 while it trained")
