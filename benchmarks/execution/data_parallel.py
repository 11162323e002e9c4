"""Is the runtime as fast as DDP where it does the same: data parallelism over all ranks?

    python benchmarks/execution/data_parallel.py -o idle.json             two ranks of an idle machine
    python benchmarks/execution/data_parallel.py --busy 1 -o busy.json    beside another process

Both train the same batches in the same processes, by turns, with the malloc settings of deeppool's ranks, each of which
is pinned to a core or, with ``--any-core``, may run on any.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from main import compare, measured_table
from torch import nn

import deeppool as dp
from deeppool.base import serialization
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.processes.launcher import LocalLauncher, WorkerSpec

MODELS = {
    "resnet18": ((3, 64, 64), 16),
    "resnet50": ((3, 64, 64), 16),
    "vgg11": ((3, 64, 64), 16),
    "vit_b_16": ((3, 224, 224), 4),
    "data_parallel:small_transformer": ((128, 256), 16),
}
SPIN = "import torch; torch.set_num_threads(1)\nx = torch.randn(64, 64, 32, 32); w = torch.randn(64, 64, 3, 3)\n"
SPIN += "while True: torch.conv2d(x, w, padding=1)"


class SmallTransformer(nn.Module):
    """Four encoder layers of width 256 over 128 vectors, and a classifier of their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True) for _ in range(4)
        )
        self.head = nn.Linear(256, 100)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def small_transformer() -> nn.Module:
    return SmallTransformer()


small_transformer.input_shape = (128, 256)


class AnyCore(LocalLauncher):
    """Ranks that may run on any core of this machine."""

    def worker_spec(self, rank: int) -> WorkerSpec:
        return replace(super().worker_spec(rank), core=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--any-core", action="store_true", help="ranks are not pinned")
    parser.add_argument("--busy", type=int, default=0, help="processes beside the ranks that always compute")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=5, help="in a row by each way")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    rows = []
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(arguments.busy)]
    try:
        for model in arguments.models:
            shape, batch = MODELS[model]
            profile = dp.profile(model, shape, device="cpu", batch_sizes=[batch // 2, batch], seconds=0.1)
            plan = data_parallel_plan(profile, dp.Cluster(gpus=2), batch)
            launcher = (AnyCore if arguments.any_core else LocalLauncher)("cpu", 2)
            rows.append(compare(plan, launcher, arguments.rounds, arguments.iterations))
            documents = [serialization.to_json(row) for row in rows]
            serialization.write_text(json.dumps(documents, indent=1), arguments.output)
    finally:
        for process in others:
            process.kill()
            process.wait()
    print(measured_table("model, batch", [(f"{row.model}, {row.global_batch}", row) for row in rows]))


if __name__ == "__main__":
    main()
