"""Registration of the emulated device with torch: its factories, and the functions that torch calls of every device."""

import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from deeppool.device.datasheet import GPUS
from deeppool.device.emulated.runtime import TYPE, DeviceRuntime
from deeppool.device.emulated.shapes import Form
from deeppool.device.emulated.tensor import new_tensor, region_of


class Registration:
    """Registers the device's factories with torch, in this process; torch's registrations last as long as it."""

    def __init__(
        self, runtime: Callable[[int], DeviceRuntime], runtimes: Callable[[], Iterable[DeviceRuntime]]
    ) -> None:
        """Registers them.

        Args:
            runtime: returns the runtime of this process with an index.
            runtimes: returns all that this process uses.
        """
        self._runtime, self._runtimes = runtime, runtimes
        torch._register_device_module(TYPE, self._module())
        self._library = torch.library.Library("aten", "IMPL")
        self._library.impl("empty.memory_format", self._empty, "PrivateUse1")
        self._library.impl("empty_strided", self._empty_strided, "PrivateUse1")

    def _module(self) -> types.ModuleType:
        """Returns the module of functions that torch calls of every device."""
        module = types.ModuleType(f"torch.{TYPE}")
        module.__dict__.update(
            _is_in_bad_fork=lambda: False,
            manual_seed_all=self._seed,
            is_available=lambda: True,
            device_count=lambda: 1 + len(GPUS),
            current_device=lambda: 0,
        )
        return module

    def _seed(self, seed: int) -> None:
        for runtime in self._runtimes():
            runtime.generator.manual_seed(seed)

    def _empty(self, size: Sequence[int], *, dtype: torch.dtype | None = None, **kwargs: Any) -> torch.Tensor:
        form = kwargs.get("memory_format")
        like = torch.empty(size, dtype=dtype, device="meta", memory_format=form or torch.contiguous_format)
        return self._empty_strided(size, like.stride(), dtype=like.dtype, device=kwargs.get("device"))

    def _empty_strided(
        self,
        size: Sequence[int],
        stride: Sequence[int],
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        runtime = self._runtime(0 if device is None or device.index is None else device.index)
        made = new_tensor(Form(tuple(size), tuple(stride), dtype or torch.get_default_dtype()), runtime)
        if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python):
            # torch.tensor fills it at once, without an operator that could be queued.
            runtime.hazards.launch(runtime.stream.index, "tensor", [], [region_of(made)])
            runtime.synchronize(runtime.stream)
        return made
