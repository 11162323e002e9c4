"""Which rank is to blame when one ends, and what is told of it: the first fault, not those that follow from it."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from deeppool.errors import RankFailedError, RankRefusedError
from deeppool.processes.hang_detector import RankStatus

LESS_MEMORY = "a smaller global batch or more ranks need less, and a plan made with --memory keeps a limit"
ADVICE = {
    "memory": LESS_MEMORY,
    "loader": "if memory ran out, fewer loader_workers need less; loader_workers=0 shows an error of the data's own",
}
"""By the kind of a failure."""


def root_cause(ranks: Sequence[RankStatus], codes: Mapping[str, int | None]) -> RankStatus | None:
    """A rank that did not fall with another; None where all that ended so far lost a connection.

    Args:
        ranks: all.
        codes: exit code by name; None while it runs, minus a signal's number where that killed it.
    """
    # gloo may abort a process that ends after a lost connection: what it told before is why it ends.
    killed = [rank for rank in ranks if (codes[rank.name] or 0) < 0 and not rank.failure]
    own = [rank for rank in ranks if rank.failure and rank.failure["kind"] != "connection"]
    silent = [rank for rank in ranks if codes[rank.name] is not None and not rank.failure]
    return next(iter([*killed, *own, *silent]), None)


def failure_error(
    ranks: Sequence[RankStatus], first: RankStatus | None, fate: str, when: str, out_of_memory: int
) -> RankFailedError:
    """The error of a run that a rank ended.

    Args:
        ranks: all.
        first: to blame, of :func:`root_cause`.
        fate: how it ended, as its parent saw it.
        when: what the ranks were told to do.
        out_of_memory: processes that the kernel ended since the run began, because this machine had no memory left.
    """
    victims = [rank for rank in ranks if rank.failure and rank.failure["kind"] == "connection" and rank is not first]
    if first is None:
        told = "; ".join(f"{rank.name} {rank.failure['text']}" for rank in victims if rank.failure)
        error = RankFailedError(f"{told} {when}; all ranks were stopped (is the network between them up?)")
    elif first.failure is None:
        seen = f", last seen in {first.what}" if first.pulse else ""
        missed = "".join(f", missed by {rank.name} in {rank.failure['doing']}" for rank in victims if rank.failure)
        starved = fate.startswith("was killed by signal 9") and out_of_memory > 0
        cause = ", probably by the kernel because memory ran out," if starved else ""
        error = RankFailedError(
            f"{first.name} {fate}{cause} {when}{seen}{missed}; the other ranks were stopped "
            f"({LESS_MEMORY if starved else 'run again'})"
        )
    elif first.failure["kind"] == "refusal":
        error = RankRefusedError(f"{first.name} gave up {when}: {first.failure['text']}; the other ranks were stopped")
    else:
        advice = ADVICE.get(first.failure["kind"])
        told = f"{first.name} {first.failure['text']} {when}; the other ranks were stopped"
        error = RankFailedError(told if advice is None else f"{told} ({advice})")
    told_by = [first] if first is not None else victims
    for rank in told_by:
        if rank.failure is not None:
            error.add_note(f"of {rank.name}: {rank.failure['traceback']}")
    return error


def processes_without_memory() -> int:
    """That the kernel of this machine has ended for want of memory since it started; 0 where it does not say."""
    try:
        counters = dict(line.split() for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines())
    except OSError:
        return 0
    return int(counters.get("oom_kill", 0))
