"""Brute-force simulation of the device of ``deeppool.simulation.device.collocated`` in equal small time steps.

No gate, no governor: the background launches whenever fewer than ``in_flight`` pieces are. Times are multiples of a
half.
"""

from collections import deque

TICK = 0.25


def simulate(steps, pieces, pair, *, in_flight, preempts, private, iterations):
    """Returns the seconds of all iterations and of the background's completed work."""
    phases = [phase for step in steps for phase in ((None, step.idle), (step, step.seconds))] * iterations
    queue, launched, work, ticks = deque(), 0, 0.0, 0
    for step, seconds in phases:
        left = seconds
        waits = step is not None and step.idle > 0 and not preempts
        ahead = max(min(1, len(queue)), len(queue) - private) if waits else 0
        while left > 0:
            while len(queue) < in_flight:
                queue.append(pieces[launched % len(pieces)].seconds)
                launched += 1
            foreground, background = (1.0, 1.0) if step is None else (0.0, 1.0) if ahead > 0 else pair
            left -= foreground * TICK
            queue[0] -= background * TICK
            work += background * TICK
            ticks += 1
            if queue[0] == 0:
                queue.popleft()
                ahead -= 1
    return ticks * TICK, work
