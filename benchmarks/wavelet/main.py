"""How close do waves of model parallelism come to as many times the speed as there are ranks?

    python benchmarks/wavelet/main.py -o waves.json

Four ranks on this machine, connected by gloo over the loopback. Computing is slept, in place of a GPU for each rank;
weights, activations and gradients are really sent. For each ratio of computing to transfers, by turns: plain model
parallelism, waves, and GPipe and 1F1B of torch.distributed.pipelining with as many micro-batches as there are waves.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "crossover"))

from slept import LAYERS, WIDTH, Slept, job, sleep  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.graph.capture.losses import classification_loss  # noqa: E402
from deeppool.interleaving.wavelet.model_parallel import WaveletModelParallel  # noqa: E402
from deeppool.interleaving.wavelet.rotation import partitions  # noqa: E402
from deeppool.interleaving.wavelet.step_time import (  # noqa: E402
    PartitionCosts,
    efficiency,
    vanilla_step_time,
    waves_step_time,
)

RANKS = 4
RATIOS = (0.5, 1.0, 2.0, 5.0, 10.0)


class Part(nn.Module):
    """The layers of one rank of a pipeline."""

    def __init__(self, model: Slept, rank: int) -> None:
        super().__init__()
        share = LAYERS // RANKS
        self.seconds = model.share
        self.down, self.up = model.down[rank * share :][:share], model.up[rank * share :][:share]
        self.head = model.head if rank == RANKS - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for down, up in zip(self.down, self.up, strict=True):
            x = sleep(x, self.seconds / 3, 2 * self.seconds / 3)
            x = x + up(torch.relu(down(x)))
        return self.head(x)


def batch_of(samples: range) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(len(samples), WIDTH), torch.zeros(len(samples), dtype=torch.int64)


def pipeline(kind: str, seconds: float, megabytes: float, samples: int) -> Callable[[], None]:
    """One step of a pipeline of torch, with a micro-batch for each rank."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank = dist.get_rank()
    part = Part(Slept(seconds, megabytes), rank)
    stage = PipelineStage(part, rank, RANKS, torch.device("cpu"))
    schedule = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[kind](stage, RANKS, loss_fn=classification_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.01)
    inputs, targets = batch_of(range(RANKS * samples))

    def step() -> None:
        if rank == 0:
            schedule.step(inputs)
        elif rank == RANKS - 1:
            schedule.step(target=targets, losses=[])
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def waves(number: int, seconds: float, megabytes: float, samples: int) -> WaveletModelParallel:
    made = job(seconds, megabytes)
    graph = made.capture().graph
    weights = [float(any("sleep" in operator for operator in layer.operators)) for layer in graph.layers]
    return WaveletModelParallel(
        made, global_batch=number * samples, waves=number, parts=partitions(graph, RANKS, weights)
    )


def timed(work: Callable[[], object], times: int) -> float:
    """Median seconds in which all ranks have done some work, after one to warm up."""
    found = []
    for _ in range(times + 1):
        dist.barrier()
        started = time.perf_counter()
        work()
        dist.barrier()
        found.append(time.perf_counter() - started)
    return statistics.median(found[1:])


def transfers(megabytes: float, samples: int, times: int) -> dict[str, float]:
    """Seconds of sending a partition's weights to all ranks, of summing its gradients, and of moving activations."""
    rank = dist.get_rank()
    block = torch.zeros(int(megabytes * 1e6 / 4 / RANKS))
    sent, received = torch.zeros(samples, WIDTH), torch.zeros(samples, WIDTH)

    def move() -> None:
        works = [dist.irecv(received, (rank - 1) % RANKS), dist.isend(sent, (rank + 1) % RANKS)]
        for work in works:
            work.wait()

    empty = timed(lambda: None, times)
    return {
        "weights": max(0.0, timed(lambda: dist.broadcast(block, 0), times) - empty),
        "gradients": max(0.0, timed(lambda: dist.all_reduce(block), times) - empty),
        "moved": max(0.0, timed(move, times) - empty),
    }


def of_step(costs: dict[str, float]) -> float:
    """Seconds of all transfers of a step of waves, one after the other."""
    return RANKS * (2 * costs["weights"] + costs["gradients"]) + 2 * (RANKS - 1) * costs["moved"]


def measure(ratio: float, arguments: argparse.Namespace) -> dict[str, object]:
    before = transfers(arguments.megabytes, arguments.samples, arguments.steps)
    # All ranks sleep what rank 0 says.
    shared = torch.tensor(ratio * of_step(before))
    dist.broadcast(shared, 0)
    seconds = float(shared)
    vanilla = waves(1, seconds, arguments.megabytes, arguments.samples)
    rotating = waves(RANKS, seconds, arguments.megabytes, arguments.samples)
    orders: dict[str, Callable[[], object]] = {
        "vanilla": lambda: vanilla.step(batch_of),
        "waves": lambda: rotating.step(batch_of),
        "gpipe": pipeline("gpipe", seconds, arguments.megabytes, arguments.samples),
        "1f1b": pipeline("1f1b", seconds, arguments.megabytes, arguments.samples),
    }
    steps: dict[str, list[float]] = {name: [] for name in orders}
    computing: list[tuple[list[float], list[float]]] = []
    links = [before]
    for _ in range(arguments.repetitions):
        for name, step in orders.items():
            steps[name].append(timed(step, arguments.steps))
        spans = rotating.spans
        computing.append(
            tuple(
                [end - start for kind, *_, start, end in spans if kind == chosen] for chosen in ("forward", "backward")
            )
        )
        links.append(transfers(arguments.megabytes, arguments.samples, arguments.steps))
    link = {key: statistics.median(each[key] for each in links) for key in before}
    forwards = [statistics.median(times) for times in zip(*(each[0] for each in computing), strict=True)]
    backwards = [statistics.median(times) for times in zip(*(each[1] for each in computing), strict=True)][::-1]
    costs = [
        PartitionCosts(forward, backward, link["moved"] if k < RANKS - 1 else 0.0, link["weights"], link["gradients"])
        for k, (forward, backward) in enumerate(zip(forwards, backwards, strict=True))
    ]
    for each in (vanilla, rotating):
        each.close()
    return {
        "ratio": seconds / of_step(link),
        "slept": seconds,
        "costs": [asdict(each) for each in costs],
        "seconds": steps,
        "predicted": {"vanilla": vanilla_step_time(costs), "waves": waves_step_time(costs)},
        "efficiency": efficiency(costs),
    }


def run(rank: int, arguments: argparse.Namespace, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=RANKS)
    found = [measure(ratio, arguments) for ratio in arguments.ratios]
    if rank == 0:
        Path(folder, "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def table(found: list[dict]) -> str:
    lines = [
        "| computing / transfers | vanilla, ms | waves, ms | formula | speed-up / N | formula | of formula | GPipe, ms "
        "| 1F1B, ms | waves over 1F1B |",
        "|---" * 10 + "|",
    ]
    for each in found:
        ms = {name: 1e3 * statistics.median(times) for name, times in each["seconds"].items()}
        measured = ms["vanilla"] / ms["waves"]
        ratios = sorted(f / w for f, w in zip(each["seconds"]["1f1b"], each["seconds"]["waves"], strict=True))
        lines.append(
            f"| {each['ratio']:.2f} | {ms['vanilla']:.0f} | {ms['waves']:.0f} | {1e3 * each['predicted']['waves']:.0f} "
            f"| **{measured:.2f}** | {each['efficiency']:.2f} | {measured / each['efficiency']:.2f} "
            f"| {ms['gpipe']:.0f} | {ms['1f1b']:.0f} "
            f"| **{statistics.median(ratios):.2f}** ({ratios[0]:.2f}-{ratios[-1]:.2f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of all measurements")
    parser.add_argument("--megabytes", type=float, default=8.0, help="of weights, in all partitions")
    parser.add_argument("--samples", type=int, default=64, help="of a batch, and of a micro-batch")
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS, help="computing of a batch / transfers")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="of each order in a repetition")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (arguments, folder), nprocs=RANKS)
        found = json.loads(Path(folder, "found.json").read_text())
    arguments.output.write_text(json.dumps(found, indent=1))
    print(table(found))


if __name__ == "__main__":
    main()
