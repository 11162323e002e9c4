"""One rank of the reshard benchmark: moves batches between sets of ranks there and back, as a run does."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from deeppool.collectives.layout import Layout
from deeppool.device.cpu import CpuDevice
from deeppool.device.find import find_device
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.exchange import Exchange, SampleCopy
from deeppool.processes.managed_process import CommandChannel


def move(exchange, shard, source, destination, like):
    """As a stage does that needs the value at once."""
    (arrival,) = exchange.start([SampleCopy(shard, source, destination, like)])
    return arrival.wait() if exchange.rank in destination.gpus else None


def main():
    commands = CommandChannel()
    setup = commands.next()
    rank = setup["rank"]
    device = find_device("cpu")
    device.select(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with device.unbound():
        dist.init_process_group(
            "gloo", init_method=Path(setup["rendezvous"]).as_uri(), rank=rank, world_size=setup["ranks"]
        )
    exchange = Exchange(ProcessGroup(CpuDevice()), torch.device("cpu"))
    times = [[] for _ in setup["cases"]]
    # Round after round through all cases: a second in which the machine is busy does not fall on one of them.
    for _ in range(setup["rounds"]):
        for index, (source, destination, batch, sample_bytes) in enumerate(setup["cases"]):
            here, there = Layout(tuple(source), batch), Layout(tuple(destination), batch)
            like = torch.zeros(1, sample_bytes // 4)
            shard = torch.zeros(len(here.shard(rank)), sample_bytes // 4) if rank in source else None
            for _ in range(2):  # the first one warms up
                dist.barrier()
                started = time.perf_counter()
                moved = move(exchange, shard, here, there, like)
                move(exchange, moved, there, here, like)
                exchange.finish()
                seconds = (time.perf_counter() - started) / 2
            times[index].append(seconds)
    commands.answer("done", times=times)
    commands.next()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
