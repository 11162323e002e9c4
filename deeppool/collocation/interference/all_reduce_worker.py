"""A process that repeats all-reduces with others, as ranks of a training do between their layers.

``setup`` (once) has its number, how many there are, the file in which they meet, and the bytes. The other commands and
answers are those of ``kernel_worker``: a run lasts until one process receives ``rest``, and ends for all at once.
"""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from deeppool.collectives.perform.process_group import LOOPBACK_INTERFACE, init_process_group, use_interface
from deeppool.collocation.interference.kernel_worker import serve
from deeppool.device.cpu import CpuDevice
from deeppool.processes.managed_process import CommandChannel

ELEMENT_BYTES = 4
TIMEOUT = timedelta(seconds=120)
"""Limit of an all-reduce with the others; the process that started them detects a failure much sooner."""


def main() -> None:
    """Executes commands until ``exit``."""
    commands = CommandChannel()
    setup = commands.next()
    device = CpuDevice()
    device.select(setup["rank"])
    use_interface(LOOPBACK_INTERFACE)
    init_process_group(
        device,
        timeout=TIMEOUT,
        init_method=Path(setup["rendezvous"]).as_uri(),
        rank=setup["rank"],
        world_size=setup["ranks"],
    )
    values = torch.zeros(setup["bytes"] // ELEMENT_BYTES)

    def all_reduce() -> None:
        values[0] = float(commands.pending())
        dist.all_reduce(values)

    all_reduce()
    commands.answer("ready")
    serve(commands, [all_reduce], over=lambda: bool(values[0]))


if __name__ == "__main__":
    main()
