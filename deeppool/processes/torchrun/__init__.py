"""Runs over the processes that torchrun starts, on one node or several.

torchrun starts the same command once per rank, on every node. The process with rank 0 becomes the launcher; each of
the others becomes a host server, which starts the processes of its rank (the rank itself, its background job, its
busy loop that keeps a core awake) as :class:`deeppool.processes.managed_process.ManagedProcess` and relays their
messages.

    rendezvous.py    the launcher and the host servers find each other through torchrun's store
    host_server.py   starts processes on its machine for the launcher
    launcher.py      the launcher's side: a Launcher whose processes the host servers start
    channel.py       the authenticated connection between the two: JSON messages, and files
"""

import os


def started_by_torchrun() -> bool:
    """Whether torchrun started this process."""
    return all(variable in os.environ for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
