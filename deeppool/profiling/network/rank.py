"""Process of a rank that :func:`deeppool.measure_network` starts on this machine.

Commands: ``setup`` (once), ``exit``. Answers: ``ready``, ``progress`` of rank 0, and ``done`` with what it measured.
"""

import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from deeppool.collectives.perform.process_group import LOOPBACK_INTERFACE, init_process_group, use_interface
from deeppool.device.find import find_device
from deeppool.errors import DeeppoolError
from deeppool.processes.heartbeat import Heartbeat
from deeppool.processes.managed_process import CommandChannel
from deeppool.profiling.network.gradient_copies import copy_seconds_per_byte
from deeppool.profiling.network.patterns import RankContext, measure_patterns

RENDEZVOUS_TIMEOUT = 120.0
"""Seconds that a rank waits for the others after the measurement's; the launcher detects a failure sooner."""


def main() -> None:
    """Serves one measurement."""
    commands = CommandChannel()
    heartbeat = Heartbeat(commands)
    try:
        setup = commands.next()
        context = RankContext(setup["rank"], setup["ranks"], setup["ranks"])
        device = find_device(setup["device"])
        device.select(context.local)
        use_interface(LOOPBACK_INTERFACE)
        heartbeat.enter("joining the other ranks", waits=True)
        init_process_group(
            device,
            timeout=timedelta(seconds=RENDEZVOUS_TIMEOUT + setup["seconds"]),
            init_method=Path(setup["rendezvous"]).as_uri(),
            rank=context.rank,
            world_size=context.ranks,
        )
        commands.answer("ready")
        heartbeat.enter("measuring the network")
        curves = measure_patterns(
            context.rounds(schedules=setup["schedules"]),
            context,
            device,
            setup["sizes"],
            setup["seconds"],
            lambda what, share: commands.answer("progress", what=what, share=share),
        )
        commands.answer("done", curves=[asdict(curve) for curve in curves], copying=copy_seconds_per_byte(device))
        commands.next()
        dist.destroy_process_group()
    except DeeppoolError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
