"""Do a profile's layers add up to the whole iteration, and do its straight lines meet what lies between its sizes?

Compares three ways to derive the iteration time from layers with the measured iteration, all interleaved:
*profile*, layers stamped inside iterations; *alone*, each distinct layer in a loop of its own, which is what most
profilers do; and *as written*, the user's own module, which knows nothing of layers.
"""

import argparse
import time
from collections import Counter

import torch

import deeppool as dp
from benchmarks.held_out import held_out
from deeppool.device.find import find_device
from deeppool.graph.capture.capture import CapturedModel
from deeppool.graph.capture.extract import example_inputs, extract
from deeppool.graph.capture.losses import classification_loss
from deeppool.profiling.measure.iteration import example_data
from deeppool.profiling.measure.sampling import typical

MODELS = ("vgg16", "wide_resnet101_2", "inception_v3", "resnet50", "bert_base")
SIZES = (1, 2, 4)
COMPARED = 4
"""Per-GPU batch size of the two other ways."""
RUNS = 2
INTERPOLATED = ("resnet50", "inception_v3")
HELD_OUT = (3, 6)
PROFILED = (1, 2, 4, 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | batch | layers add up to | whole iteration | off by | spread | each alone | as written |")
    print("|---|---|---|---|---|---|---|---|")
    captured = {name: capture(name) for name in arguments.models}
    for name, model in captured.items():
        for row in accuracy(name, model):
            print(row, flush=True)
    chosen = [name for name in INTERPOLATED if name in captured]
    if not chosen:
        return
    print(f"\nPredicted from {', '.join(map(str, PROFILED))}:\n")
    print("| model | held-out batch | median error of a layer | iteration off by |")
    print("|---|---|---|---|")
    for name in chosen:
        for row in interpolation(name, captured[name]):
            print(row, flush=True)


def capture(name: str) -> CapturedModel:
    if name != "bert_base":
        return dp.capture(name)
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    return dp.capture(BertForSequenceClassification(BertConfig()), (128,), input_dtype=torch.int64)


def accuracy(name: str, model: CapturedModel) -> list[str]:
    """Rows of the table: each size, and at one of them the two other ways."""
    profile = dp.profile(model, device="cpu", batch_sizes=SIZES)
    rows = []
    for check in profile.checks:
        others = "– | –"
        if check.batch == COMPARED:
            others = f"{alone(model, COMPARED) / check.iteration - 1:+.1%} | " + (
                f"{as_written(model, COMPARED) / check.iteration - 1:+.1%}"
            )
        rows.append(
            f"| {name} | {check.batch} | {check.layers:.3f} s | {check.iteration:.3f} s | {check.deviation:+.1%} "
            f"| {check.spread:.1%} | {others} |"
        )
    return rows


def alone(model: CapturedModel, batch: int) -> float:
    """Sum over the layers of the time that each distinct one takes in a loop of its own."""
    device = find_device("cpu").torch_device()
    places = Counter(layer.signature for layer in model.graph.layers)
    first = {layer.signature: index for index, layer in reversed(list(enumerate(model.graph.layers)))}
    total = 0.0
    for signature, index in first.items():
        segment = extract(model, [index])
        inputs = example_inputs(segment, batch, device)
        wanted = [x for x in (*inputs, *segment.module.parameters()) if x.requires_grad]
        runs = []
        for _ in range(RUNS + 1):
            started = time.perf_counter()
            outputs = [x for x in segment.module(batch, *inputs) if x.requires_grad]
            if outputs and wanted:
                torch.autograd.grad(outputs, wanted, [torch.ones_like(x) for x in outputs], allow_unused=True)
            runs.append(time.perf_counter() - started)
        total += places[signature] * typical(runs[1:])
    return total


def as_written(model: CapturedModel, batch: int) -> float:
    """Forward and backward of the module that was captured."""
    *inputs, target = example_data(model, batch, find_device("cpu"))
    runs = []
    for _ in range(RUNS + 1):
        model.source.zero_grad(set_to_none=True)
        started = time.perf_counter()
        classification_loss(model.source(*inputs), target).backward()
        runs.append(time.perf_counter() - started)
    model.source.zero_grad(set_to_none=True)
    return typical(runs[1:])


def interpolation(name: str, model: CapturedModel) -> list[str]:
    """Rows of the second table: what a profile says of sizes that it did not measure."""
    # All in one go, so that the machine is as busy for the one as for the other.
    profile = dp.profile(model, device="cpu", batch_sizes=(*PROFILED, *HELD_OUT))
    return [
        f"| {name} | {size.batch} | {size.median:.1%} | {size.iteration:+.1%} |" for size in held_out(profile, HELD_OUT)
    ]


if __name__ == "__main__":
    main()
