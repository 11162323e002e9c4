"""What the priority of a stream does for a short kernel behind a long queue, and what it does not."""

from dataclasses import dataclass

import torch

from deeppool.device.emulated.device import new_device
from deeppool.device.emulated.virtual_scheduler import HARDWARE_QUEUES
from deeppool.device.protocol import Device, Stream, StreamPriority

QUEUED = 10
"""Long kernels that are launched before the short one."""
SHORT = 256
"""Rows of the short product."""


@dataclass(frozen=True, slots=True)
class LongProduct:
    """A long product of matrices, by the thread blocks that it has on a GPU."""

    name: str
    rows: int
    depth: int


GPU = (LongProduct("many short blocks", 8192, 512), LongProduct("one wave of long blocks", 1408, 16384))
"""Tiles of 128 x 128 or more: thousands of blocks, or at most as many as a GPU has multiprocessors."""
CPU = (LongProduct("many short blocks", 256, 16), LongProduct("one wave of long blocks", 64, 256))
"""As little work as a CPU can do in place of a GPU; it has no blocks."""


@dataclass(frozen=True, slots=True)
class PriorityEffect:
    """Time until a short graph has ended that is launched behind a queue of long kernels of low priority."""

    background: str
    """The long kernels."""
    captured: StreamPriority
    replayed: StreamPriority
    """Priorities of the streams that captured the short graph and that replay it."""
    alone: float
    """Seconds without the long kernels."""
    seconds: float
    """Seconds since before the first of them was launched."""


def stream_priorities(device: Device) -> tuple[PriorityEffect, ...]:
    """Measures a short graph captured and replayed at either priority, behind two kinds of long kernels."""
    priorities: tuple[StreamPriority, ...] = ("high", "low")
    found = []
    with device.times_only():
        for product in CPU if device.memory is None else GPU:
            queue = _Product(product.rows, product.depth, device.stream("low"), device)
            for captured in priorities:
                short = _Product(SHORT, SHORT, device.stream(captured), device)
                for replayed in priorities:
                    stream = device.stream(replayed)
                    alone, behind = short.seconds(stream), short.seconds(stream, behind=queue)
                    found.append(PriorityEffect(product.name, captured, replayed, alone, behind))
    return tuple(found)


def emulated_priorities(gpu: str) -> dict[str, tuple[PriorityEffect, ...]]:
    """Measures them on an emulated GPU, with a hardware queue for each stream and with one for all.

    Args:
        gpu: name of its data sheet, such as ``h200``.
    """
    queues = {"a hardware queue each": HARDWARE_QUEUES, "one hardware queue": 1}
    return {name: stream_priorities(new_device(gpu, queues=count)) for name, count in queues.items()}


class _Product:
    """A graph with a product of matrices, and their memory, which a graph does not keep."""

    def __init__(self, rows: int, depth: int, stream: Stream, device: Device) -> None:
        """Captures it on a stream."""
        place = device.torch_device()
        self._left, self._right = torch.randn(rows, depth, device=place), torch.randn(depth, rows, device=place)
        self._product = torch.empty(rows, rows, device=place)
        self._stream, self._device = stream, device
        with stream.current():
            (self._graph,) = device.repeatable(self._multiply)
        device.synchronize()

    def _multiply(self) -> None:
        torch.mm(self._left, self._right, out=self._product)

    def seconds(self, stream: Stream, behind: "_Product | None" = None) -> float:
        """Returns the seconds from now, on an idle device, until it has ended that is launched on a stream.

        Args:
            stream: replays it.
            behind: launched several times on its own stream before it.
        """
        started = self._device.stamp()
        if behind is not None:
            for _ in range(QUEUED):
                behind._stream.launch(behind._graph)
        launch = stream.launch(self._graph)
        self._device.synchronize()
        return self._device.seconds(started, launch.end)
