"""The arguments with which process groups are created: on a GPU, NCCL at high priority on the rank's own GPU."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
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
    init_process_group(device, init_method="tcp://x:1", rank=1, world_size=4)
    new_group(device, (1, 3))
    (((backend,), joined), ((ranks,), grouped)) = calls
    assert (backend, ranks) == ("nccl", [1, 3])
    assert (joined["init_method"], joined["rank"], joined["world_size"]) == ("tcp://x:1", 1, 4)
    for settings in (joined, grouped):
        assert settings["pg_options"].is_high_priority_stream
        assert settings["timeout"] == settings["pg_options"]._timeout == COLLECTIVE_TIMEOUT
        assert settings["device_id"] == torch.device("cuda", 2)
    # torch writes into them.
    assert joined["pg_options"] is not grouped["pg_options"]


def test_gloo_gets_no_options(calls: list[Any]) -> None:
    init_process_group(CpuDevice(), init_method="tcp://x:1", rank=0, world_size=2)
    new_group(CpuDevice(), (0, 1))
    assert [sorted(named) for _, named in calls] == [["init_method", "rank", "timeout", "world_size"], ["timeout"]]


MEET = """
import os, sys
from datetime import timedelta
from pathlib import Path
import torch
import torch.distributed as dist
from deeppool.collectives.perform.process_group import init_process_group
from deeppool.device.cpu import CpuDevice
for folder in sys.argv[1:]:
    meeting = (Path(folder) / "rendezvous").as_uri()
    init_process_group(CpuDevice(), timeout=timedelta(seconds=60), init_method=meeting, rank=0, world_size=1)
    total = torch.ones(3)
    dist.all_reduce(total)
    print(total.tolist(), os.listdir(folder))
    dist.destroy_process_group()
"""


def test_ranks_meet_in_a_folder_of_any_name(tmp_path: Path) -> None:
    names = (b"plain", b"a b", "\u00e9 \u6f22".encode(), b"50%20 #1?x=y;z&", b"\xff")
    folders = [tmp_path / os.fsdecode(name) for name in names]
    for folder in folders:
        folder.mkdir()
    # Where there is none of this name, torch holds the interpreter's lock for five minutes.
    command = [sys.executable, "-c", MEET, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[1.0, 1.0, 1.0] ['rendezvous']\n" * len(names)
