"""Failure attribution: finds the rank that failed first, not those that failed because of it, and makes the error."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from deeppool.errors import RankFailedError, RankRefusedError
from deeppool.processes.hang_detector import RankStatus

LESS_MEMORY = "a smaller global batch or more ranks need less, and a plan made with --memory keeps a limit"
ADVICE = {
    "memory": LESS_MEMORY,
    "loader": "if memory ran out, fewer loader_workers need less; loader_workers=0 shows an error of the data's own",
}
"""Advice by the kind of a failure."""


def root_cause(ranks: Sequence[RankStatus], codes: Mapping[str, int | None]) -> RankStatus | None:
    """Returns the rank that failed by itself, or None if all that ended so far lost a connection.

    Args:
        ranks: all ranks of the run.
        codes: exit code by name; None while it runs, minus the signal's number if a signal killed it.
    """
    # gloo may abort a process that ends after a lost connection: the failure that it reported before is the cause.
    killed = [rank for rank in ranks if (codes[rank.name] or 0) < 0 and not rank.failure]
    own = [rank for rank in ranks if rank.failure and rank.failure["kind"] != "connection"]
    silent = [rank for rank in ranks if codes[rank.name] is not None and not rank.failure]
    return next(iter([*killed, *own, *silent]), None)


def failure_error(
    ranks: Sequence[RankStatus], first: RankStatus | None, exit_reason: str, when: str, out_of_memory: int
) -> RankFailedError:
    """Creates the error of a run that failed with one of its ranks.

    Args:
        ranks: all ranks of the run.
        first: the root cause, of :func:`root_cause`.
        exit_reason: how its process ended.
        when: what the ranks were doing, for the message.
        out_of_memory: processes that the kernel killed for lack of memory since the run began.
    """
    disconnected = [
        rank for rank in ranks if rank.failure and rank.failure["kind"] == "connection" and rank is not first
    ]
    if first is None:
        text = "; ".join(f"{rank.name} {rank.failure['text']}" for rank in disconnected if rank.failure)
        error = RankFailedError(f"{text} {when}; all ranks were stopped (is the network between them up?)")
    elif first.failure is None:
        seen = f", last seen in {first.what}" if first.heartbeat else ""
        missed = "".join(f", missed by {rank.name} in {rank.failure['doing']}" for rank in disconnected if rank.failure)
        killed_for_memory = exit_reason.startswith("was killed by signal 9") and out_of_memory > 0
        cause = ", probably by the kernel because memory ran out," if killed_for_memory else ""
        error = RankFailedError(
            f"{first.name} {exit_reason}{cause} {when}{seen}{missed}; the other ranks were stopped "
            f"({LESS_MEMORY if killed_for_memory else 'run again'})"
        )
    elif first.failure["kind"] == "refusal":
        error = RankRefusedError(f"{first.name} gave up {when}: {first.failure['text']}; the other ranks were stopped")
    else:
        advice = ADVICE.get(first.failure["kind"])
        text = f"{first.name} {first.failure['text']} {when}; the other ranks were stopped"
        error = RankFailedError(text if advice is None else f"{text} ({advice})")
    error.rank = None if first is None else ranks.index(first)
    reporting = [first] if first is not None else disconnected
    for rank in reporting:
        if rank.failure is not None:
            error.add_note(f"of {rank.name}: {rank.failure['traceback']}")
    return error


def out_of_memory_kills() -> int:
    """Returns how many processes this machine's kernel killed for lack of memory since its start; 0 if unknown."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
