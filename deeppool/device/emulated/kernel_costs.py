"""Work of an operator on a GPU that is not here: its kernels, their thread blocks and seconds, by a data sheet.

The kernels are those of :mod:`deeppool.device.kernels`, their seconds those of :mod:`deeppool.device.roofline`, with
the efficiencies that were fitted to layer times of DeepPool's authors; as in :func:`deeppool.estimate`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from deeppool.device.datasheet import GpuSheet
from deeppool.device.emulated.shapes import form_of, key_of, tensors_in
from deeppool.device.kernel import Kernel
from deeppool.device.kernels import kernels_of
from deeppool.device.multiprocessors import KernelWork
from deeppool.device.roofline import FITTED, Columns


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds that the host spends on what it does with a device. Given, not measured.

    An operator of eager PyTorch costs the host 5 to 25 microseconds, of which the driver's launch is about 2 ("Getting
    Started with CUDA Graphs", NVIDIA, 2019: 2.9 us a kernel, 3.8 with its launch). A graph costs 2.5 us and 1 ns a
    node ("Constant Time Launch for Straight-Line CUDA Graphs", NVIDIA, 2024).
    """

    operator: float = 10e-6
    """Launch of an operator outside a graph."""
    graph: float = 2.5e-6
    """Launch of a graph."""
    node: float = 1e-9
    """Launch of each kernel in it."""
    query: float = 1e-6
    """Asking whether an event has passed."""


HOST_COSTS = HostCosts()


class KernelCosts:
    """Finds the work of operators, and remembers it: a training repeats the same operators on the same shapes."""

    def __init__(self, sheet: GpuSheet) -> None:
        """Takes the data sheet of the GPU."""
        self._sheet = sheet
        self._known: dict[Any, tuple[KernelWork, ...]] = {}

    def operator(
        self, operator: Any, args: Sequence[Any], kwargs: Any, outputs: Sequence[torch.Tensor]
    ) -> tuple[KernelWork, ...]:
        """Returns the work of the kernels that an operator launches, in order.

        Args:
            operator: the operator.
            args: its arguments, as tensors of the CPU of which only the shapes are read.
            kwargs: arguments by name.
            outputs: tensors that it writes.
        """
        # An operator reads each once.
        inputs = list({id(tensor): tensor for tensor in tensors_in((args, kwargs))}.values())
        key = operator, key_of(args), tuple(map(form_of, inputs)), tuple(map(form_of, outputs))
        if key not in self._known:
            name = operator._schema.name.partition("::")[2]
            self._known[key] = tuple(self.works(kernels_of(name, tuple(args), inputs, list(outputs))))
        return self._known[key]

    def works(self, kernels: Sequence[Kernel]) -> Iterable[KernelWork]:
        """Yields the work of kernels; products of 32-bit numbers do not use the tensor cores."""
        columns = Columns.of(kernels)
        seconds = FITTED.seconds(columns, self._sheet, tf32=False) - FITTED.launch
        for kernel, each, blocks in zip(kernels, seconds, FITTED.blocks(columns, self._sheet, tf32=False), strict=True):
            yield self._work(float(each), int(blocks), kernel.bytes)

    def copy(self, size: int) -> tuple[KernelWork, ...]:
        """Returns the work of a copy between host and device, of some bytes."""
        return (KernelWork(FITTED.launch + size / self._sheet.host_bandwidth),)

    @property
    def bandwidth(self) -> float:
        """Bytes per second that kernels reach together."""
        return self._sheet.bandwidth * self._sheet.reach.bandwidth

    def _work(self, seconds: float, blocks: int, size: int) -> KernelWork:
        if seconds <= 0:
            return KernelWork(FITTED.launch)
        count = self._sheet.multiprocessors
        waves = -(-blocks // count)
        # Over its waves a kernel alone moves its bytes evenly, and never more than it reaches.
        moved = min(size / seconds, self.bandwidth) / min(blocks, count)
        return KernelWork(FITTED.launch, blocks, seconds / waves, moved)
