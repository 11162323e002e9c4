"""Round trip between two ranks: half of it is the time of a transfer."""

from functools import lru_cache

from deeppool.collectives.schedule import Schedule, Transfer, schedule_of


@lru_cache(maxsize=1)
def round_trip() -> Schedule:
    """Returns the schedule in which rank 0 sends a buffer to rank 1, which returns it."""
    return schedule_of("round-trip", 2, 1, [[Transfer(0, 1, 0, 1)], [Transfer(1, 0, 0, 1)]])
