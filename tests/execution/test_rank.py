"""Process-wide settings that are active in each phase of a rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import deeppool as dp
from deeppool.base import serialization
from deeppool.base.sharing import Sharing
from deeppool.cluster.cluster import find_cluster
from deeppool.collocation.collocated_rank import CollocatedRank
from deeppool.device.cpu import CpuDevice
from deeppool.device.cuda import CudaDevice
from deeppool.execution.rank import Rank
from deeppool.execution.ranks import PLAN
from deeppool.execution.trainer import Trainer
from deeppool.job import Job

EXAMPLE, BATCH = "examples.two_branch:two_branch", 2
JOB = asdict(Job(EXAMPLE, (), BATCH))


@pytest.fixture
def open_settings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A CPU whose arithmetic is set as a GPU's: for torch the settings are of the process, whatever it runs on."""
    found: list[str] = []

    @contextmanager
    def arithmetic(device: CpuDevice, precision: str) -> Iterator[None]:
        with CudaDevice.arithmetic(device, precision):  # type: ignore[arg-type]
            found.append(precision)
            yield
            found.pop()

    monkeypatch.setattr(CpuDevice, "arithmetic", arithmetic)
    # This process stays on all its cores.
    monkeypatch.setattr(CpuDevice, "select", lambda *_: None)
    return found


def make_rank(folder: Path, **more: Any) -> Rank:
    """Makes the only rank of a plan; it is emulated, so it joins no rendezvous."""
    profile = dp.profile(EXAMPLE, device="cpu", batch_sizes=[BATCH])
    serialization.write(dp.plan(profile, find_cluster("loopback", 1), BATCH), folder / PLAN)
    setup = {"rank": 0, "ranks": 1, "position": 0, "emulated": True, "folder": str(folder), "index": 0, "core": None}
    setup |= {"shared_pages": None, "job": JOB, "sharing": None}
    heartbeat: Any = SimpleNamespace(enter=lambda *_, **__: None)
    return Rank(setup | more, heartbeat)


def test_arithmetic_settings_of_a_plan_apply_to_capture_and_execution_of_its_stages(
    tmp_path: Path, open_settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[str]] = {}
    build, iterate = Trainer.__init__, Trainer.iterate

    def building(trainer: Trainer, *arguments: Any, **more: Any) -> None:
        seen["captured"] = list(open_settings)
        build(trainer, *arguments, **more)

    def iterating(trainer: Trainer, batches: Any) -> float:
        seen["run"] = list(open_settings)
        return iterate(trainer, batches)

    monkeypatch.setattr(Trainer, "__init__", building)
    monkeypatch.setattr(Trainer, "iterate", iterating)
    rank = make_rank(tmp_path)
    rank.train(
        {"collocated": False, "awake": False, "report_all": False, "steps": 1},
        SimpleNamespace(answer=lambda *_, **__: None),
    )
    assert seen == {"captured": ["fp32"], "run": ["fp32"]}


def test_a_background_can_be_captured_by_the_process_of_a_rank(tmp_path: Path, open_settings: list[str]) -> None:
    """torch.export reads a setting that torch cannot return while the newer ones are in use."""
    sharing = asdict(Sharing(priority="normal", home="thread"))
    rank = make_rank(tmp_path, sharing=sharing)
    answer = CollocatedRank(rank).start_background({"job": JOB, "batch": BATCH}, None)
    assert answer["error"] is None
    assert answer["loss"] > 0
    with CpuDevice().arithmetic("fp32"):
        assert "allow_tf32" in CollocatedRank(rank).start_background({"job": JOB, "batch": BATCH}, None)["error"]
