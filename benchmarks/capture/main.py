"""Which models can be captured, profiled and planned? Prints a Markdown table; see README.md.

PYTHONPATH=. python benchmarks/capture/main.py [NAME …]
"""

import argparse
import gc
import time
import warnings
from collections.abc import Iterator

import torch

import deeppool as dp
from benchmarks.capture.models import OWN, SIZES, SMALL, TORCHVISION, small_language_model
from deeppool.errors import CaptureError, DeeppoolError
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import extract
from deeppool.graph.capture.losses import classification_loss, token_loss
from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, decompose, parts_of
from deeppool.training.synthetic_task import SyntheticTask

BATCH = 4
BATCH_SIZES = (2,)

Attempts = list[tuple[tuple, dict]]
"""Arguments and options of capture, the smallest input first."""


def shape_of(captured: CapturedModel) -> str:
    """``chain``, ``series-parallel``, or the sizes of its non-series-parallel regions."""
    parts = list(parts_of(decompose([layer.predecessors for layer in captured.graph.layers])))
    regions = [str(len(part.layers)) for part in parts if isinstance(part, NonSeriesParallel)]
    if regions:
        return f"non-series-parallel regions of {', '.join(regions)}"
    return "series-parallel" if any(isinstance(part, ParallelBlock) for part in parts) else "chain"


def loss_difference(captured: CapturedModel) -> tuple[float, float]:
    """|captured loss - eager loss| / |eager loss|, by the whole program and layer by layer, same seed and data."""
    *inputs, target = SyntheticTask(captured, BATCH, 0).shard(0, 0, BATCH)
    nodes = [node for node in captured.program.graph.nodes if node.op == "placeholder"]
    named = {node.name: tensor for node, tensor in zip(nodes, inputs, strict=False)}

    def whole() -> torch.Tensor:
        return captured.program(*inputs, target)

    def by_layers() -> torch.Tensor:
        values = dict(zip(nodes, (*inputs, target), strict=True))
        for layer in range(len(captured.nodes)):
            segment = extract(captured, [layer])
            outputs = segment.module(BATCH, *(values[node] for node in segment.inputs))
            values.update(zip(segment.outputs, outputs, strict=True))
        return outputs[-1]

    def eager() -> torch.Tensor:
        scores = captured.source(**named) if captured.graph.inputs[0].name else captured.source(*inputs)
        return (token_loss if target.dim() == 2 else classification_loss)(scores, target)

    losses = []
    for run in (whole, by_layers, eager):
        torch.manual_seed(0)
        with torch.no_grad():
            losses.append(float(run()))
    return abs(losses[0] / losses[2] - 1), abs(losses[1] / losses[2] - 1)


def captures() -> Iterator[tuple[str, Attempts]]:
    """(name, what captures it at a granularity, smallest input first)"""
    for name in TORCHVISION:
        yield name, [((name, (3, size, size)), {}) for size in SIZES]
    for name in SMALL:
        model, shapes = small_language_model(name)
        yield f"{name}, narrow", [((model, shapes), {"input_dtype": torch.int64})]
    for name, (build, shape, dtype) in OWN.items():
        yield name, [((build(), shape), {"input_dtype": dtype})]


def smallest(attempts: Attempts) -> tuple[CapturedModel, float, tuple, dict]:
    """The first attempt that is captured, and its CPU seconds."""
    for arguments, options in attempts:
        torch.manual_seed(0)
        started = time.process_time()
        try:
            return dp.capture(*arguments, **options), time.process_time() - started, arguments, options
        except CaptureError as error:
            failure = error
    raise failure


def row(name: str, attempts: Attempts) -> str:
    """One line of the table."""
    try:
        captured, seconds, arguments, options = smallest(attempts)
        graph = captured.graph
        counts = [
            len(dp.capture(*arguments, **options, granularity=granularity).graph.layers)
            for granularity in ("operator", "block")
        ]
        whole, layers = loss_difference(captured)
        started = time.process_time()
        profile = dp.profile(captured, device="cpu", batch_sizes=BATCH_SIZES)
        profiling = time.process_time() - started
        plan = dp.plan(profile, dp.Cluster(4), 8, 2.0)
    except DeeppoolError as error:
        return f"| {name} | {error} |"
    shapes = " and ".join("x".join(map(str, given.shape)) for given in graph.inputs)
    operators = sum(len(layer.operators) for layer in graph.layers)
    distinct = len({layer.signature for layer in graph.layers})
    return (
        f"| {name} | {shapes} | {operators} | {counts[0]} | {len(graph.layers)} | {distinct} | {counts[1]} | "
        f"{shape_of(captured)} | {seconds:.1f} | {profiling:.0f} | {whole:.0e} | {layers:.0e} | {plan.optimality} |"
    )


def main() -> None:
    """Prints a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all of them without one")
    chosen = parser.parse_args().names
    warnings.filterwarnings("ignore")
    columns = (
        "model|smallest input|operators|operator layers|module layers|distinct|block layers|graph|capture, CPU s|"
        "profile, CPU s|loss, whole|loss, by layers|plan"
    ).split("|")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name, attempts in captures():
        if not chosen or name in chosen:
            print(row(name, attempts), flush=True)
            # Graphs are full of cycles, which hold a whole model.
            gc.collect()


if __name__ == "__main__":
    main()
