"""Symbolic simulation of a schedule: what each rank holds at the end, and whether every step is reached.

A chunk's value is how often it contains each rank's contribution. Any step may be next that its rank's earlier steps
and its message permit; the simulation draws one, so that an order which a schedule fails to enforce shows itself.
"""

import random
from collections import defaultdict, deque

import numpy as np
from numpy.typing import NDArray

from deeppool.collectives.schedule import Schedule, Step
from deeppool.errors import InvalidValueError

Contributions = NDArray[np.int64]
"""How often each rank's contribution (last index) is in a chunk (second index) of a rank (first index)."""
Channels = dict[tuple[int, int], deque[Contributions]]
"""Messages in flight, by sender and receiver."""


def check_all_reduce(schedule: Schedule, orders: int = 3) -> None:
    """Checks that every rank ends with each rank's contribution to every chunk exactly once.

    Args:
        schedule: steps of all ranks.
        orders: number of random orders of the steps to try.

    Raises:
        InvalidValueError: a contribution is missing or counted twice, or ranks wait for each other.
    """
    check_rounds(schedule)
    for seed in range(orders):
        held = simulate(schedule, own_contributions(schedule), seed)
        wrong = np.argwhere(held != 1)
        if len(wrong):
            rank, chunk, source = map(int, wrong[0])
            raise InvalidValueError(
                f"{schedule}: rank {rank} ends with chunk {chunk} of rank {source} {held[rank, chunk, source]} times "
                "(an all-reduce adds each once)"
            )


def own_contributions(schedule: Schedule) -> Contributions:
    """Returns the start of an all-reduce: each rank's chunks hold its own contribution."""
    return np.repeat(np.eye(schedule.ranks, dtype=np.int64)[:, None, :], schedule.chunks, axis=1)


def simulate(schedule: Schedule, held: Contributions, seed: int = 0) -> Contributions:
    """Performs the steps in a random permitted order; a send does not wait for its receiver.

    Args:
        schedule: steps of all ranks.
        held: contributions at the start.
        seed: seed of the order.

    Returns:
        The contributions at the end.

    Raises:
        InvalidValueError: some steps can never start.
    """
    held, draw = held.copy(), random.Random(seed)
    channels: Channels = defaultdict(deque)
    done: set[int] = set()
    waiting = _queues(schedule)
    while waiting:
        ready = [queue for queue in waiting if _is_ready(schedule.steps[queue[0]], done, channels)]
        if not ready:
            raise InvalidValueError(f"{schedule}: deadlock, {len(schedule.steps) - len(done)} steps can never start")
        step = draw.choice(ready).popleft()
        _perform(schedule.steps[step], held, channels)
        done.add(step)
        waiting = [queue for queue in waiting if queue]
    return held


def check_rounds(schedule: Schedule) -> None:
    """Checks that no deadlock occurs where a rank starts a round only when both sides of the last one are done.

    Raises:
        InvalidValueError: ranks wait for each other.
    """
    left = _matched(schedule)
    while left:
        current: dict[int, int] = {}
        for transfer in left:
            for step in transfer:
                current[step.rank] = min(step.round, current.get(step.rank, step.round))
        possible = {transfer for transfer in left if all(current[step.rank] == step.round for step in transfer)}
        if not possible:
            raise InvalidValueError(f"{schedule}: deadlock, ranks wait in rounds {current} for each other")
        left = [transfer for transfer in left if transfer not in possible]


def _matched(schedule: Schedule) -> list[tuple[Step, Step]]:
    """Returns each send with its receiver's step: messages of a pair of ranks are matched by order."""
    sends: dict[tuple[int, int], deque[Step]] = defaultdict(deque)
    for step in schedule.steps:
        if step.kind == "send":
            sends[step.rank, step.peer].append(step)
    matched = []
    for step in schedule.steps:
        if step.kind != "send":
            sent = sends[step.peer, step.rank]
            if not sent or (sent[0].start, sent[0].stop) != (step.start, step.stop):
                raise InvalidValueError(f"{schedule}: rank {step.peer} sends rank {step.rank} no message for {step}")
            matched.append((sent.popleft(), step))
    if any(sends.values()):
        raise InvalidValueError(f"{schedule}: {sum(map(len, sends.values()))} sends have no receiver")
    return matched


def _queues(schedule: Schedule) -> list[deque[int]]:
    """Returns the steps whose order is fixed: those of one rank to or from one peer."""
    queues: dict[tuple[int, int, bool], deque[int]] = defaultdict(deque)
    for index, step in enumerate(schedule.steps):
        queues[step.rank, step.peer, step.kind == "send"].append(index)
    return list(queues.values())


def _is_ready(step: Step, done: set[int], channels: Channels) -> bool:
    return done.issuperset(step.after) and (step.kind == "send" or bool(channels[step.peer, step.rank]))


def _perform(step: Step, held: Contributions, channels: Channels) -> None:
    own = held[step.rank, step.start : step.stop]
    if step.kind == "send":
        channels[step.rank, step.peer].append(own.copy())
        return
    arrived = channels[step.peer, step.rank].popleft()
    own[:] = own + arrived if step.kind == "reduce" else arrived
