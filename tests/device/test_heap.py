"""Memory that is freed is kept: the operating system is asked for it once."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils.data import Dataset

import deeppool as dp
from deeppool.device.heap import keep_memory, memory_kept
from tests.collocation import misbehaving
from tests.collocation.misbehaving import BATCH, plain_training, training
from tests.device.kept_memory import FEW, faults, keep, keep_for_a_block
from tests.strategies import profile_from_times

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc, of Linux")


@pytest.mark.parametrize("what", [keep, keep_for_a_block])
def test_what_is_freed_is_kept(what: object) -> None:
    """In a process of its own: there is no way back to how a C library begins."""
    name = getattr(what, "__name__", "")
    subprocess.run([sys.executable, "-c", f"from tests.device import kept_memory; kept_memory.{name}()"], check=True)


def test_a_library_that_cannot_be_asked_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not keep_memory()
    with memory_kept():
        pass


class Hungry(Dataset):
    """Takes and frees a large block for each sample, and writes down what pages that cost, but for the first."""

    def __init__(self, told: Path, awaited: Path | None = None) -> None:
        self.data, self.told, self.awaited, self.read = misbehaving.dataset(), told, awaited, 0

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        pages = faults()
        self.read += 1
        if self.read == 2:
            written = self.told.with_suffix(".partial")
            written.write_text(str(pages))
            written.rename(self.told)
        while self.read == 2 and self.awaited is not None and not self.awaited.exists():
            time.sleep(0.05)
        return self.data[position]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
def test_ranks_and_backgrounds_keep_it(tmp_path: Path) -> None:
    graph = plain_training().capture().graph
    plan = dp.plan(profile_from_times(graph, [lambda b: 1e-3 * b] * len(graph.layers)), 1, BATCH)
    front, behind = tmp_path / "front", tmp_path / "behind"
    job = dp.BackgroundJob(training(partial(Hungry, behind)), batch=BATCH)
    # An equal: at the lowest priority it may get nothing for minutes where something else uses this core.
    dp.train(plan, plain_training(partial(Hungry, front, behind)), steps=2, background=[job], policy="naive")
    assert int(front.read_text()) < FEW
    assert int(behind.read_text()) < FEW
