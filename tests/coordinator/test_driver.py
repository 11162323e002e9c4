"""What the actor of a background job makes of the answers of its processes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deeppool.coordinator.driver import Background, Driver
from deeppool.coordinator.history import History, JobRecord
from deeppool.job import Job

STEPS = 3


class Process:
    """A process that trains at once, with one loss."""

    def __init__(self, loss: float, inbox: Any) -> None:
        self.loss, self.inbox = loss, inbox

    def send(self, command: str, steps: int = 0, **_: Any) -> None:
        log = [(0.1 * step, 0.0, self.loss) for step in range(steps + 1)]
        self.inbox.put((self, {"event": "ready"} if command == "setup" else {"event": "trained", "log": log}))


def launcher(loss: float) -> Any:
    return SimpleNamespace(
        distribute_files=lambda folder: None,
        worker_spec=lambda rank: SimpleNamespace(core=rank, folder="/"),
        start=lambda rank, module, name, inbox: Process(loss, inbox),
    )


@pytest.mark.parametrize(("loss", "kept"), [(2.5, 2.5), (1e35, None), (float("inf"), None), (float("nan"), None)])
def test_the_record_of_a_background_can_be_written_whatever_its_loss(
    loss: float, kept: float | None, tmp_path: Path
) -> None:
    driver, work = Driver(), Background(Job("mlp", (), 4), STEPS, "/")
    driver._train_background(work, launcher(loss), [cast(Any, None)] * 2)
    assert (driver.progress().update, driver.progress().loss) == (STEPS, kept)
    history = History(tmp_path)
    history.write(
        JobRecord(1, "background", "mlp", 2, STEPS, "2026-11-21T12:00:00", "done", progress=driver.progress())
    )
    assert [record.state for record in history.read()] == ["done"]
