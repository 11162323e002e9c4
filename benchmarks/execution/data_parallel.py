"""Is the runtime as fast as DDP where it does the same: data parallelism over all ranks?

    python benchmarks/execution/data_parallel.py -o idle.json             two ranks of an idle machine
    python benchmarks/execution/data_parallel.py --busy 1 -o busy.json    beside another process

The baseline is what a user would pick: DDP on ranks that may run on any core, with the malloc settings of deeppool's
ranks. Plans train once pinned, a rank to a core, and once on any core. All ways train the same batches in the same
processes, by turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from torch import nn

import deeppool as dp
from deeppool.base import serialization
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder
from deeppool.records.confidence_interval import paired_ratio

HERE = Path(__file__).parent
MODELS = {
    "resnet18": ((3, 64, 64), 16),
    "resnet50": ((3, 64, 64), 16),
    "vgg11": ((3, 64, 64), 16),
    "vit_b_16": ((3, 224, 224), 4),
    "data_parallel:small_transformer": ((128, 256), 16),
}
WAYS = ("ddp, any core", "plan, pinned", "plan, any core")
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


def compare(model: str, rounds: int, iterations: int) -> dict[str, object]:
    """All ways, interleaved, on two ranks."""
    shape, batch = MODELS[model]
    profile = dp.profile(model, shape, device="cpu", batch_sizes=[batch // 2, batch], seconds=0.1)
    plan = data_parallel_plan(profile, dp.Cluster(gpus=2), batch)
    launcher = LocalLauncher("cpu", 2)
    with private_folder() as folder, RankGroup(launcher) as group:
        serialization.write(plan, folder / "plan.json")
        launcher.distribute_files(folder)
        for rank in range(plan.gpus):
            group.start("rank").send(
                "setup", rank=rank, ranks=plan.gpus, fewer=(), **asdict(launcher.worker_spec(rank))
            )
        group.collect("ready", 300, "while it started")
        group.send("compare", rounds=1, iterations=2, ways=WAYS)
        group.collect("done", 600, "while it warmed up")
        group.send("compare", rounds=rounds, iterations=iterations, ways=WAYS)
        answers = group.collect("done", 1800, "while it trained")
    seconds = {
        way: [max(times) for times in zip(*(answer[way]["seconds"] for answer in answers), strict=True)] for way in WAYS
    }
    return {
        "model": model,
        "input_shape": shape,
        "global_batch": batch,
        "seconds": seconds,
        "ratios": {way: paired_ratio(seconds[way], seconds[WAYS[0]], rounds) for way in WAYS[1:]},
    }


def table(rows: list[dict]) -> str:
    """Medians (quartiles) in milliseconds, and ratios to DDP."""
    lines = [
        "| model | batch on ranks | " + " | ".join(f"{way}, ms" for way in WAYS) + " | pinned / DDP | any core / DDP |",
        "|---" * (len(WAYS) + 4) + "|",
    ]
    for row in rows:
        times = []
        for way in WAYS:
            low, middle, high = (1e3 * value for value in statistics.quantiles(row["seconds"][way], n=4))
            times.append(f"{middle:.0f} ({low:.0f} … {high:.0f})")
        ratios = [f"{value:.3f} ({low:.3f} … {high:.3f})" for value, low, high in row["ratios"].values()]
        cells = (row["model"].partition(":")[2] or row["model"], f"{row['global_batch']} on 2", *times, *ratios)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--busy", type=int, default=0, help="processes beside the ranks that always compute")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=5, help="in a row by each way")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # The ranks import the script beside this one.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(dp.environment(), file=sys.stderr)
    rows = []
    others = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(arguments.busy)]
    try:
        for model in arguments.models:
            rows.append(compare(model, arguments.rounds, arguments.iterations))
            serialization.write_text(json.dumps(rows, indent=1), arguments.output)
    finally:
        for process in others:
            process.kill()
            process.wait()
    print(table(rows))


if __name__ == "__main__":
    main()
