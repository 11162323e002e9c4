"""Patterns of collectives as schedules, of any number of ranks.

ring                1 / P of the buffer to the next rank in each of 2 (P - 1) rounds
halving_doubling    the same bytes in 2 log2 P rounds
recursive_doubling  whole buffers in log2 P rounds
fold                rank counts that are no power of two, for the last two
hierarchical        inside nodes, then between them
parameter_server    one server, or a share on each rank
broadcast_tree      the first rank's buffer to all
round_trip          there and back between two ranks
"""

from collections.abc import Callable
from functools import lru_cache

from deeppool.collectives.patterns.halving_doubling import halving_doubling
from deeppool.collectives.patterns.hierarchical import hierarchical
from deeppool.collectives.patterns.parameter_server import parameter_server, sharded_parameter_server
from deeppool.collectives.patterns.recursive_doubling import recursive_doubling
from deeppool.collectives.patterns.ring import ring
from deeppool.collectives.schedule import Schedule, schedule_of
from deeppool.errors import InvalidValueError

ALL_REDUCES: dict[str, Callable[[int, int], Schedule]] = {
    "ring": lambda ranks, per_node: ring(ranks),
    "halving-doubling": lambda ranks, per_node: halving_doubling(ranks),
    "recursive-doubling": lambda ranks, per_node: recursive_doubling(ranks),
    "hierarchical": hierarchical,
    "parameter-server": lambda ranks, per_node: parameter_server(ranks),
    "sharded-parameter-server": lambda ranks, per_node: sharded_parameter_server(ranks),
}
"""Name of each all-reduce and its schedule, by the number of ranks and those of a node."""
HALVES: dict[str, tuple[str, str]] = {
    "ring": ("ring-reduce-scatter", "ring-all-gather"),
    "parameter-server": ("parameter-server-push", "parameter-server-pull"),
    "sharded-parameter-server": ("sharded-parameter-server-push", "sharded-parameter-server-pull"),
}
"""All-reduces of two parts, each half of the rounds, between which a rank may do other work; and the parts' names."""
LIBRARY = "library"
"""Name of the all-reduce of torch.distributed's own backend."""


def schedule_named(pattern: str, ranks: int, per_node: int = 1) -> Schedule | None:
    """Returns the schedule of a pattern; None: the library's own all-reduce.

    Args:
        pattern: ``library``, a name of :data:`ALL_REDUCES`, or that of a part in :data:`HALVES`.
        ranks: number of ranks.
        per_node: ranks of a node.

    Raises:
        InvalidValueError: another name.
    """
    if pattern == LIBRARY:
        return None
    if pattern in ALL_REDUCES:
        return ALL_REDUCES[pattern](ranks, per_node)
    for whole, parts in HALVES.items():
        if pattern in parts:
            return _half(whole, ranks, parts.index(pattern))
    known = ", ".join([LIBRARY, *ALL_REDUCES, *(name for parts in HALVES.values() for name in parts)])
    raise InvalidValueError(f"no pattern is named '{pattern}' (there are {known})")


@lru_cache(maxsize=256)
def _half(pattern: str, ranks: int, part: int) -> Schedule:
    whole = ALL_REDUCES[pattern](ranks, 1)
    rounds = whole.transfers()
    middle = len(rounds) // 2
    return schedule_of(HALVES[pattern][part], ranks, whole.chunks, rounds[middle:] if part else rounds[:middle])
