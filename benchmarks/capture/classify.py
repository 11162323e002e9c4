"""What becomes of architectures that deeppool was not developed with? Prints a Markdown table; see README.md.

PYTHONPATH=. python benchmarks/capture/classify.py [NAME …]
"""

import argparse
import gc
import sys
import traceback
import warnings
from collections import Counter

import torch

from benchmarks.capture.architectures import Architecture, architectures
from benchmarks.capture.comparison import (
    SAMPLES,
    build,
    by_layers_and_shards,
    capture,
    difference,
    eager_loss,
    freeze,
    gradients_of,
    is_random,
    lowest_dtype,
    steps,
)
from deeppool.errors import CaptureError
from deeppool.training.synthetic_task import SyntheticTask

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3}
"""Relative differences of gradients; BatchNorm over few samples amplifies rounding."""


def classify(architecture: Architecture) -> tuple[str, str]:
    """Returns captured, refused, TRACEBACK or DIFFERENT, and what there is to say about it."""
    model, dtype = build(architecture)
    try:
        captured = capture(model, architecture, dtype)
    except CaptureError as error:
        return ("refused" if "\n" not in str(error) else "TRACEBACK"), str(error)
    dtype = lowest_dtype(captured)
    by_program = steps(model, captured, None)
    expected = list(steps(model, captured, architecture))
    worst = max(difference(found, wanted) for found, wanted in zip(by_program, expected, strict=True))
    whole, split = f"{worst[0]:.0e}", "random"
    verdict = "captured" if worst[0] <= TOLERANCE[dtype] else f"DIFFERENT in {worst[1]}"
    captured = freeze(model, captured, architecture)
    found = by_layers_and_shards(captured)
    if not is_random(captured):
        loss = eager_loss(model, architecture, list(SyntheticTask(captured, SAMPLES, 0).shard(0, 0, SAMPLES)))
        worst = difference(found, {"loss": loss.detach(), **gradients_of(loss, model)})
        split = f"{worst[0]:.0e}"
        if worst[0] > TOLERANCE[dtype]:
            verdict = f"DIFFERENT in {worst[1]} when split"
    kind = str(dtype).removeprefix("torch.")
    return verdict, f"{len(captured.graph.layers)} layers; {kind}, {whole} whole, {split} split"


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def main() -> None:
    """Prints a row as soon as it is known, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="architectures or libraries; all without one")
    chosen, count = parser.parse_args().names, Counter[str]()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print("| architecture | library | result | layers and relative differences, or the refusal |\n|---|---|---|---|")
    for architecture in architectures():
        if chosen and architecture.name not in chosen and architecture.library not in chosen:
            continue
        try:
            verdict, detail = classify(architecture)
        except Exception as error:
            verdict, detail = "TRACEBACK", f"{type(error).__name__}: {first_line(error)}"
            print(architecture.name, file=sys.stderr)
            traceback.print_exc()
        count[verdict.split()[0]] += 1
        print(f"| {architecture.name} | {architecture.library} | {verdict} | {detail} |", flush=True)
        # Graphs are full of cycles, which hold a whole model.
        gc.collect()
    print(f"\n{sum(count.values())} architectures: {', '.join(f'{n} {verdict}' for verdict, n in count.most_common())}")


if __name__ == "__main__":
    main()
