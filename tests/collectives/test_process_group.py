"""The arguments with which process groups are created: on a GPU, NCCL at high priority on the rank's own GPU."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from deeppool.collectives.perform.process_group import COLLECTIVE_TIMEOUT, init_process_group, new_group
from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import CudaDevice


class Options:
    """Stands for ``ProcessGroupNCCL.Options``, with torch's own defaults."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = timedelta(minutes=10)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    made: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for name in ("init_process_group", "new_group"):
        monkeypatch.setattr(dist, name, lambda *given, **named: made.append((given, named)))
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    return made


def test_on_a_gpu_every_group_has_high_priority_streams_and_the_ranks_gpu(calls: list[Any]) -> None:
    device = CudaDevice.__new__(CudaDevice)
    init_process_group(device, init_method="file:///x", rank=1, world_size=4)
    new_group(device, (1, 3))
    (((backend,), joined), ((ranks,), grouped)) = calls
    assert (backend, ranks) == ("nccl", [1, 3])
    assert (joined["init_method"], joined["rank"], joined["world_size"]) == ("file:///x", 1, 4)
    for settings in (joined, grouped):
        assert settings["pg_options"].is_high_priority_stream
        assert settings["timeout"] == settings["pg_options"]._timeout == COLLECTIVE_TIMEOUT
        assert settings["device_id"] == torch.device("cuda", 2)
    # torch writes into them.
    assert joined["pg_options"] is not grouped["pg_options"]


def test_gloo_gets_no_options(calls: list[Any]) -> None:
    init_process_group(CpuDevice(), init_method="file:///x", rank=0, world_size=2)
    new_group(CpuDevice(), (0, 1))
    assert [sorted(named) for _, named in calls] == [["init_method", "rank", "timeout", "world_size"], ["timeout"]]
