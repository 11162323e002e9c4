"""One run over the processes that torchrun starts, on one node or several.

torchrun starts a process per rank, on every node the same command. The one with rank 0 becomes the launcher;
the others become its *agents*: each starts the processes of its rank (the rank itself, its background job, its
spinner) with :class:`deeppool.processes.managed_process.ManagedProcess`, as the launcher does on its own machine, and relays their lines.

    gathering.py   who is there: the launcher and its agents find each other by torchrun's store
    agent.py       an agent's life
    launcher.py    the launcher's end: a Place whose processes are the agents'
    wire.py        what runs between the two: JSON lines, and files
    clock.py       how far two machines' clocks are apart
"""

import os


def started_by_torchrun() -> bool:
    """Whether this process is one of the ranks that torchrun started."""
    return all(variable in os.environ for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
