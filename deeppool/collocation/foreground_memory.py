"""Keeps the memory that a foreground's iterations need while a background is made in its process.

A foreground makes two iterations before there is a background: by then its graphs and the state of its optimizer hold
their memory. Inputs, and buffers of transfers, are allocated in each iteration and freed in the next. What is free lies
in the allocator's cache, which gives it to whoever is short of memory, and is emptied whenever a graph is captured. So
as much is held while a background is made. Later steps of a background allocate what its first step did.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from deeppool.device.protocol import Device


class ForegroundMemory:
    """Memory that an iteration of a foreground allocates and frees."""

    def __init__(self, device: Device, place: torch.device) -> None:
        """Counts from now on: the foreground makes two iterations before :meth:`held`.

        Args:
            device: the foreground's device, selected.
            place: the same as torch names it.
        """
        self._device, self._place = device, place
        self._bytes: int | None = None
        device.memory_use()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Allocates in the block as many bytes as the foreground's iterations had freed at its first use.

        The foreground's stream is current. A device without memory of its own has none to hold.
        """
        if self._bytes is None:
            now, highest = self._device.memory_use() or (0, 0)
            self._bytes = highest - now
        memory = torch.empty(self._bytes, dtype=torch.uint8, device=self._place)
        yield
        del memory
