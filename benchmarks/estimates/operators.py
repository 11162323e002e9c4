"""How far off are single operators in fp32, on GPUs that others measured?

Reads the tables of sitar-lab/NeuSight (MIT licence, "Copyright (c) 2025 Georgia Institute of Technology and Microsoft
Corporation"): forward kernels in fp32 without TF32, PyTorch 2.1, collected for "Forecasting GPU Performance for Deep
Learning Training and Inference" (ASPLOS 2025). The project does not hold them.

    python -m benchmarks.estimates.operators --neusight FOLDER      # a checkout of the repository
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.estimates.main import LONG
from benchmarks.estimates.naive import naive_seconds
from deeppool.device.datasheet import GPUS, GpuSheet
from deeppool.device.kernel import Kernel
from deeppool.device.kernels import SHORT_ROW
from deeppool.device.roofline import FITTED, Columns

FILES = ("bmm", "linear", "elem", "ln", "softmax")
SHEETS = {
    "NVIDIA A100 80GB PCIe": replace(GPUS["a100-80"], bandwidth=1.935e12),
    "NVIDIA A100-PCIE-40GB": GPUS["a100-40"],
    "NVIDIA H100 80GB HBM3": GPUS["h100"],
    "NVIDIA L4": GPUS["l4"],
    "Tesla V100-PCIE-32GB": replace(GPUS["v100"], clock=1.38e9, fp32=14.1e12, half=113e12),
}
"""Data sheets of the measured cards; PCIe cards differ in clock and bandwidth."""
TITLES = {"bmm": "batched products", "linear": "linear", "ln": "layer norm", "softmax": "softmax"}

Rows = dict[tuple[str, str], list[tuple[Kernel, float]]]
"""Kernels with their seconds, by operator and device."""


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neusight", type=Path, required=True)
    print("\n".join(table(read(parser.parse_args().neusight))))


def read(folder: Path) -> Rows:
    """Returns what took longer than LONG."""
    found: Rows = defaultdict(list)
    for name in FILES:
        with (folder / f"scripts/asplos/data/dataset/test/{name}.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                seconds = float(row["Latency"]) / 1e3
                if row["Device"] in SHEETS and seconds > LONG:
                    operator = TITLES.get(row["OPName"], "elementwise")
                    found[operator, row["Device"]].append((kernel_of(row), seconds))
    return found


def kernel_of(row: dict[str, str]) -> Kernel:
    """Returns the kernel of a row, in fp32."""
    name = row["OPName"]
    if name in ("bmm", "linear"):
        count, rows, columns, depth = (int(float(row[key])) for key in "BMNK")
        flops = 2 * count * rows * columns * depth
        size = 4 * (count * rows * (depth + columns) + columns * depth * (count if name == "bmm" else 1))
        if name == "linear":
            count, rows = 1, count * rows
        return Kernel(name, "product", size, flops, rows, columns, count, 4)
    elements, width = int(row["B"]) * int(row["H"]), int(row["H"])
    if name in ("ln", "softmax"):
        again = 0 if name == "softmax" and width <= SHORT_ROW else 4 * elements
        return Kernel(name, "memory", 8 * elements, again_bytes=again, row_bytes=4 * width)
    return Kernel(name, "memory", 4 * elements * (3 if name in ("add", "mul", "div", "pow") else 2))


def table(rows: Rows) -> Iterator[str]:
    """Yields the errors of each operator on each GPU."""
    yield "| operator | GPU | samples | error, median / 90th percentile | estimated / measured | naive roofline |"
    yield "|---" * 6 + "|"
    for operator, device in sorted(rows):
        measured = np.array([seconds for _, seconds in rows[operator, device]])
        columns = Columns.of([kernel for kernel, _ in rows[operator, device]])
        ratios = [f(columns, SHEETS[device]) / measured for f in (_fitted, _naive)]
        cells = ["{:.1f} / {:.1f} %".format(*np.quantile(np.abs(100 * (ratio - 1)), [0.5, 0.9])) for ratio in ratios]
        yield f"| {operator} | {device} | {len(measured)} | {cells[0]} | {np.median(ratios[0]):.2f} | {cells[1]} |"


def _fitted(columns: Columns, gpu: GpuSheet) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return FITTED.seconds(columns, gpu, tf32=False)


def _naive(columns: Columns, gpu: GpuSheet) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return naive_seconds(columns, gpu, tf32=False)


if __name__ == "__main__":
    main()
