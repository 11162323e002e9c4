"""Process groups of torch.distributed as the foreground's collectives need them on each device."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from deeppool.device.protocol import Device

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait in a collective. The launcher detects a hung rank much sooner."""


def init_process_group(device: Device, *, timeout: timedelta = COLLECTIVE_TIMEOUT, **where: Any) -> None:
    """Initialises torch.distributed.

    Args:
        device: device of this rank, selected.
        timeout: longest wait in a collective.
        where: ``init_method`` or ``store``, with ``rank`` and ``world_size``; none: torchrun's environment.
    """
    with device.unbound():
        dist.init_process_group(device.backend, timeout=timeout, **device.group_settings(timeout), **where)


def new_group(device: Device, ranks: Sequence[int]) -> Any:
    """Creates a group of torch.distributed; every rank calls it, in the same order."""
    with device.unbound():
        return dist.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT, **device.group_settings(COLLECTIVE_TIMEOUT))
