"""Do two ranks train architectures as one process does? Prints a Markdown table; see README.md.

PYTHONPATH=. python benchmarks/capture/two_ranks.py [NAME …]
"""

import argparse
import contextlib
import random
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.capture.architectures import Architecture, architectures
from benchmarks.capture.comparison import SAMPLES, build, capture, difference, eager_loss, freeze, gradients_of
from deeppool.collectives.layout import Layout
from deeppool.device.cpu import CpuDevice
from deeppool.errors import CaptureError
from deeppool.execution.communicator import ProcessGroup
from deeppool.execution.stages import Stage
from deeppool.execution.trainer import Trainer
from deeppool.training.synthetic_task import SyntheticTask
from deeppool.training.training_job import Training
from tests.ranks import run_ranks

RANKS, DRAWN = 2, 10


def find(name: str) -> Architecture:
    """Returns the architecture of that name."""
    return next(architecture for architecture in architectures() if architecture.name == name)


def run_rank(rank: int, name: str, folder: str) -> None:
    """Computes one iteration with a random set of ranks for each layer; saves this rank's loss and gradients."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo", init_method=Path(folder, "rendezvous").as_uri(), rank=rank, world_size=RANKS)
    architecture = find(name)
    model, dtype = build(architecture)
    captured = freeze(model, capture(model, architecture, dtype), architecture)
    draw = random.Random(name)
    sets = [draw.choice([(0,), (1,), (0, 1)]) for _ in captured.graph.layers]
    stages = [Stage(str(index), (index,), Layout(ranks, SAMPLES - 1)) for index, ranks in enumerate(sets)]
    training = Training(optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    trainer = Trainer(captured, stages, ProcessGroup(CpuDevice()), training)
    task = SyntheticTask(captured, SAMPLES - 1, 0)
    loss = trainer.gradients([lambda shard: task.shard(0, shard.start, shard.stop)])
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    torch.save({"loss": torch.tensor(loss, dtype=torch.float64), **found}, Path(folder, f"{rank}.pt"))
    dist.destroy_process_group()


def compare(name: str) -> float:
    """Returns the largest relative difference of two ranks' loss and gradients from those of the model itself.

    Raises:
        CaptureError: the architecture is not captured.
    """
    architecture = find(name)
    model, dtype = build(architecture)
    captured = freeze(model, capture(model, architecture, dtype), architecture)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(run_rank, (name, folder), RANKS)
        ranks = [torch.load(Path(folder, f"{rank}.pt"), weights_only=True) for rank in range(RANKS)]
    loss = eager_loss(model, architecture, list(SyntheticTask(captured, SAMPLES - 1, 0).shard(0, 0, SAMPLES - 1)))
    expected = {"loss": loss.detach(), **gradients_of(loss, model)}
    losses = torch.stack([rank.pop("loss") for rank in ranks]).sum()
    # A parameter that both ranks hold has the same summed gradient on each.
    worst = [difference(other | rank | {"loss": losses}, expected)[0] for rank, other in (ranks, ranks[::-1])]
    return max(worst)


def main() -> None:
    """Compares the named ones, or ten that are captured, drawn at random."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures; ten drawn at random without one")
    chosen = parser.parse_args().names
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    every = [architecture.name for architecture in architectures()]
    random.Random(0).shuffle(every)
    rows = 0
    print("| architecture | relative difference of 2 ranks |\n|---|---|")
    for name in chosen or every:
        with contextlib.suppress(CaptureError):
            print(f"| {name} | {compare(name):.0e} |", flush=True)
            rows += 1
        if rows == DRAWN and not chosen:
            return


if __name__ == "__main__":
    main()
