"""One rank of the benchmark of the choice: measures the network, and then all that could be chosen, again."""

import os

import torch.distributed as dist

from deeppool.base import serialization
from deeppool.device.find import find_device
from deeppool.processes.managed_process import CommandChannel
from deeppool.profiling.network.measure import measure_joined
from deeppool.profiling.network.patterns import RankContext


def main():
    commands = CommandChannel()
    setup = commands.next()
    device = find_device("cpu")
    device.select(setup["index"])
    os.environ["GLOO_SOCKET_IFNAME"] = setup["interface"] or "lo"
    with device.unbound():
        dist.init_process_group("gloo", init_method=setup["rendezvous"], rank=setup["rank"], world_size=setup["ranks"])
    context = RankContext(setup["rank"], setup["ranks"], 1 if setup["interface"] else setup["ranks"])
    clusters = [
        measure_joined(
            context,
            device,
            sizes,
            seconds=setup["seconds"],
            schedules=True,
            report=lambda what, share: commands.answer("progress", what=what, share=share),
        )
        for sizes in (setup["sizes"], setup["held_out"])
    ]
    commands.answer("done", clusters=[cluster and serialization.to_json(cluster) for cluster in clusters])
    commands.next()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
