"""The bound on a training's slowdown, changed during the training."""

import gc
import os
import queue
import signal
import threading
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from torch.utils.data import Dataset

import deeppool as dp
from deeppool.base.run_control import RunControl
from deeppool.execution.ranks import Ranks
from deeppool.processes.managed_process import CommandChannel, Message
from deeppool.records.training_record import Metrics
from deeppool.runs.restart_loop import SHORT_CHUNK, RestartLoop
from tests.collocation import misbehaving
from tests.collocation.misbehaving import BATCH, plain_training, training
from tests.collocation.test_contained_background import one_rank
from tests.processes.children import children, runs

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("in_the_checkout")]


AHEAD = 2
"""Maximum updates that a rank makes before the launcher has received the first of them."""
SENT = 11
"""Update at whose message the launcher sends the new bound."""


class ControlMessages(queue.SimpleQueue):
    """Control messages of this rank, which tells when the first has arrived."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        (channel,) = (found for found in gc.get_objects() if type(found) is CommandChannel)
        channel._control = self

    def put(self, item: Message, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        self.arrived.set()


class InStep(Dataset):
    """Data that become available once the launcher has received an earlier update, marked by a file of its number.

    Those of the second update after :data:`SENT` wait until this rank has received the new bound.
    """

    def __init__(self, received: Path) -> None:
        self.data, self.received, self.read = misbehaving.dataset(), received, 0
        self.control: ControlMessages | None = None

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, position: int) -> tuple[torch.Tensor, torch.Tensor]:
        update = self.read // BATCH
        self.read += 1
        if self.control is None and not (self.received / str(SENT)).exists():
            self.control = ControlMessages()
        while update > AHEAD and not (self.received / str(update - AHEAD)).exists():
            time.sleep(0.01)
        if self.control is not None and update > SENT:
            self.control.arrived.wait()
        return self.data[position]


def rank() -> psutil.Process:
    (found,) = (child for child in children() if runs(child, "execution.worker"))
    return found


@pytest.mark.slow
def test_ranks_apply_a_new_bound_soon_and_restarted_ranks_from_their_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run_control, bounds = RunControl(), []
    on_update = RestartLoop._on_update

    def record_bound(loop: RestartLoop, ranks: Ranks, message: Message) -> None:
        bounds.append((message["step"], message.get("bound")))
        on_update(loop, ranks, message)
        while message["step"] == SHORT_CHUNK and not loop._settings.supervisor.has_started:
            time.sleep(0.01)

    def act(metrics: Metrics) -> None:
        if metrics.update == 10 and run_control.bound == 0.5:
            run_control.change_bound(0.02)
        # The rank may be ahead, but not at the end.
        if metrics.update == 18 and not (tmp_path / "18").exists():
            os.kill(rank().pid, signal.SIGKILL)
        (tmp_path / str(metrics.update)).touch()

    monkeypatch.setattr(RestartLoop, "_on_update", record_bound)
    record = dp.train(
        one_rank(),
        plain_training(partial(InStep, tmp_path)),
        steps=18 + 2 * AHEAD,
        background=[dp.BackgroundJob(training(), batch=BATCH)],
        max_slowdown=0.5,
        run_control=run_control,
        restarts=1,
        on_metrics=act,
    )
    again = next(index for index in range(1, len(bounds)) if bounds[index][0] == 1)
    first = dict(bounds[:again])
    assert record.restarts == 1
    # No limit applies before the job has begun.
    assert [first[update] for update in range(1, 11)] == [None] * 5 + [0.5] * 5
    # Received during update 13 at the latest, taken and agreed upon in update 14.
    changed = [first[update] for update in range(SENT, 19)]
    assert changed == sorted(changed, reverse=True)
    assert set(changed[2 * AHEAD :]) == {0.02}
    assert bounds[again:] == [(update, 0.02) for update in range(1, 18 + 2 * AHEAD + 1)]
    assert run_control.refusal == "the run is over"
