"""A rank of the compared ways that divides a model by what is slept, and measures transfers alone; its entry point."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from deeppool.execution.rank import Command
from deeppool.execution.worker import serve
from deeppool.interleaving.wavelet.rotation import partitions
from deeppool.runs.technique_comparison.rank import TechniqueRank


class PartitionsRank(TechniqueRank):
    """One rank."""

    def parts(self, graph):
        """Returns partitions that sleep equally long."""
        slept = [float("sleep" in layer.operators) for layer in graph.layers]
        return partitions(graph, self.ranks, slept)

    @property
    def commands(self):
        """All commands by name."""
        return {**super().commands, "transfers": Command("measuring transfers alone", self.transfers)}

    def transfers(self, message, commands):
        """Measures sending a partition's weights, summing its gradients, and moving activations to the next rank."""
        block = torch.zeros(message["bytes"] // 4)
        sent, received = torch.zeros(message["moved"] // 4), torch.zeros(message["moved"] // 4)

        def move() -> None:
            works = [
                dist.irecv(received, (self.rank - 1) % self.ranks),
                dist.isend(sent, (self.rank + 1) % self.ranks),
            ]
            for work in works:
                work.wait()

        times = message["times"]
        return {
            "weights": seconds_of(lambda: dist.broadcast(block, 0), times),
            "gradients": seconds_of(lambda: dist.all_reduce(block), times),
            "moved": seconds_of(move, times),
        }


def seconds_of(work: Callable[[], object], times: int) -> float:
    """Returns the median seconds until this rank has done some work that all begin together, after one to warm up."""
    found = []
    for _ in range(times + 1):
        dist.barrier()
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def main() -> None:
    """Executes the launcher's commands until ``exit``."""
    serve(PartitionsRank)


if __name__ == "__main__":
    main()
