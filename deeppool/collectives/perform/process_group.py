"""Process groups of torch.distributed as the foreground's collectives need them on each device."""

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import torch.distributed as dist

from deeppool.device.protocol import Device

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Longest wait in a collective. The launcher detects a hung rank much sooner."""
LOOPBACK_INTERFACE = "lo"
"""Network interface of ranks on one machine."""


def use_interface(name: str) -> None:
    """Has the ranks meet on a network interface, unless the environment names one; NCCL only on the loopback.

    By default both libraries listen on a public address. Between machines NCCL chooses among all interfaces.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    if name == LOOPBACK_INTERFACE:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")


def init_process_group(device: Device, *, timeout: timedelta = COLLECTIVE_TIMEOUT, **where: Any) -> None:
    """Initialises torch.distributed.

    Args:
        device: device of this rank, selected.
        timeout: longest wait in a collective.
        where: ``init_method`` or ``store``, with ``rank`` and ``world_size``; none: torchrun's environment.
    """
    if str(where.get("init_method", "")).startswith("file:"):
        # torch would take %20 in its path for three characters, and wait for a folder of that name to appear.
        path: Any = unquote_to_bytes(urlsplit(where.pop("init_method")).path)
        store = dist.FileStore(path, where["world_size"])  # type: ignore[attr-defined]  # its stub does not export it
        store.set_timeout(timeout)
        where["store"] = store
    with device.unbound():
        dist.init_process_group(device.backend, timeout=timeout, **device.group_settings(timeout), **where)


def new_group(device: Device, ranks: Sequence[int]) -> Any:
    """Creates a group of torch.distributed; every rank calls it, in the same order."""
    with device.unbound():
        return dist.new_group(list(ranks), timeout=COLLECTIVE_TIMEOUT, **device.group_settings(COLLECTIVE_TIMEOUT))
