"""Parameter server: gradients go to one rank, or a share of them to each, and the sums come back.

The servers are among the ranks ("co-located"): they hold gradients of their own.
"""

from functools import lru_cache

from deeppool.collectives.schedule import Schedule, Transfer, schedule_of


@lru_cache(maxsize=256)
def parameter_server(ranks: int) -> Schedule:
    """Returns the all-reduce in which rank 0 adds all buffers."""
    workers = range(1, ranks)
    push = [Transfer(worker, 0, 0, 1, reduces=True) for worker in workers]
    pull = [Transfer(0, worker, 0, 1) for worker in workers]
    return schedule_of("parameter-server", ranks, 1, [push, pull] if ranks > 1 else [])


@lru_cache(maxsize=256)
def sharded_parameter_server(ranks: int) -> Schedule:
    """Returns the all-reduce in which each rank adds one share of all buffers."""
    # In step with the others: in each position a rank has another receiver, so nobody receives from all at once.
    pairs = [(rank, (rank + shift) % ranks) for shift in range(1, ranks) for rank in range(ranks)]
    push = [Transfer(rank, server, server, server + 1, reduces=True) for rank, server in pairs]
    pull = [Transfer(server, rank, server, server + 1) for server, rank in pairs]
    return schedule_of("sharded-parameter-server", ranks, ranks, [push, pull] if ranks > 1 else [])
