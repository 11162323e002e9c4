"""Prints the peak memory in bytes of a process that trains in two waves, with one heap or one for each thread."""

import sys
from pathlib import Path

import torch
from torch import nn

from deeppool.collectives.layout import Layout
from deeppool.device import cpu
from deeppool.execution.communicator import SingleRank
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.graph.capture.capture import capture
from deeppool.interleaving.wavelet.driver import WaveDriver
from deeppool.training.training_job import Training

BATCH = 8192


def main() -> None:
    if sys.argv[1] == "own":
        cpu.share_heap = lambda: False
    cpu.CpuDevice().select(0)
    layers = (module for width in (8, *[256] * 8) for module in (nn.Linear(width, 256), nn.Tanh()))
    captured = capture(nn.Sequential(*layers), (8,))
    trainer = Trainer(
        captured,
        [Stage("all", tuple(range(len(captured.graph.layers))), Layout((0,), BATCH))],
        SingleRank(),
        Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1)),
        make_driver=WaveDriver,
    )
    data = torch.zeros(BATCH, 8), torch.zeros(BATCH, dtype=torch.int64)
    for _ in range(6):
        trainer.iterate([lambda shard: data])
    trainer.driver.drain()
    trainer.close()
    lines = Path("/proc/self/status").read_text().splitlines()
    print(1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1]))


if __name__ == "__main__":
    main()
