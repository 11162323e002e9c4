"""The coordinator's actor without Ray: its own state."""

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from deeppool.base import serialization
from deeppool.coordinator import gpus, head
from deeppool.coordinator.history import ClusterStatus, History, JobProgress, JobRecord, State
from deeppool.records.training_record import TrainingRecord
from tests.figures.records import training_of


@pytest.fixture
def nodes() -> list[dict[str, Any]]:
    return [{"Alive": True, "NodeID": "node", "NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 1}}]


@pytest.fixture
def coordinator(nodes: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> head.Head:
    """A coordinator of one core."""
    ray = SimpleNamespace(
        nodes=lambda: nodes,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="10.0.0.1:6379"),
        exceptions=SimpleNamespace(RayError=ConnectionError, RayActorError=ConnectionError),
    )
    for module in (head, gpus):
        monkeypatch.setattr(module, "find_ray", lambda: ray)
    return head.Head("cpu")


def job(number: int, state: State) -> head._Job:
    record = JobRecord(number, "foreground", "vgg16", 1, 5, "2026-11-21T12:00:00", state, (0,), ("10.0.0.1",))
    return head._Job(record, cast(Any, None))


def test_a_status_names_the_jobs_that_hold_gpus_when_all_drivers_have_answered(
    coordinator: head.Head, tmp_path: Path
) -> None:
    async def status_while_the_job_ends() -> ClusterStatus:
        await coordinator.open(str(tmp_path))
        answer = asyncio.get_running_loop().create_future()
        first = job(1, "running")
        first.driver = SimpleNamespace(progress=SimpleNamespace(remote=lambda: answer))
        coordinator._jobs[1] = first
        asked = asyncio.create_task(coordinator.status())
        await asyncio.sleep(0)
        coordinator._end(first, state="done")
        coordinator._jobs[2] = job(2, "running")
        answer.set_result(None)
        return await asked

    status = asyncio.run(status_while_the_job_ends())
    assert [(each.job, each.state) for each in status.jobs] == [(1, "done"), (2, "running")]
    assert [use.foreground for use in status.gpus] == [2]


@pytest.mark.parametrize(
    ("loses", "then"),
    [
        pytest.param(False, "running", id="a GPU that is free"),
        pytest.param(True, "queued", id="the GPU that a running job lost"),
    ],
)
def test_a_job_that_waits_starts_on_a_node_that_joins_unless_a_running_one_lacks_gpus(
    coordinator: head.Head,
    nodes: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loses: bool,
    then: State,
) -> None:
    looks, living = [], coordinator._gpus.living
    monkeypatch.setattr(head, "LOOK_SECONDS", 0)
    monkeypatch.setattr(coordinator._gpus, "living", lambda: looks.append(None) or living())
    monkeypatch.setattr(coordinator, "_train", lambda job: asyncio.Event().wait())

    async def next_look() -> None:
        before = len(looks)
        while len(looks) == before:
            await asyncio.sleep(0)

    async def states() -> list[list[State]]:
        found = []
        await coordinator.open(str(tmp_path))
        for _ in range(2):
            await coordinator.submit("background", "vgg16", 1, None, cast(Any, None))
        for number in range(2):
            await next_look()
            found.append([each.state for each in (await coordinator.status()).jobs])
            nodes.append(nodes[0] | {"NodeID": f"node {number}"})
            nodes[0]["Alive"] = not loses
            nodes[1]["Alive"] = True
        await coordinator.close()
        return found

    assert asyncio.run(states()) == [["running", "queued"], ["running", then]]


def test_a_job_that_is_cancelled_while_it_gets_gpus_in_place_of_lost_ones_keeps_its_record(
    coordinator: head.Head, nodes: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_train", lambda job: asyncio.Event().wait())

    async def record_after_the_cancel() -> JobRecord:
        await coordinator.open(str(tmp_path))
        number = await coordinator.submit("foreground", "vgg16", 1, 5, cast(Any, None))
        first, second = asyncio.get_running_loop().create_future(), asyncio.get_running_loop().create_future()
        answers = iter([first, second])
        monkeypatch.setattr(coordinator._gpus, "slots", lambda gpus: next(answers))
        asked = asyncio.create_task(coordinator.reassign(number))
        await asyncio.sleep(0)
        cancelled = await coordinator.cancel(number)
        # The node is lost before it starts a runtime, and another one joined.
        nodes[0] = nodes[0] | {"NodeID": "another node"}
        first.set_exception(gpus.NodeLostError())
        second.set_result([])
        await asked
        return cancelled

    cancelled = asyncio.run(record_after_the_cancel())
    assert (cancelled.state, cancelled.gpus) == ("cancelled", (0,))
    assert History(tmp_path).read() == [cancelled]


def test_a_trained_job_is_done_on_a_full_disk_and_its_records_are_written_when_there_is_room(
    coordinator: head.Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, plain = History(tmp_path), os.replace
    driver = SimpleNamespace(
        run=SimpleNamespace(remote=lambda *_: asyncio.sleep(0, (JobProgress(5), training_of()))),
        progress=SimpleNamespace(remote=lambda: asyncio.sleep(0, JobProgress(5))),
    )
    made = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: driver))
    context = SimpleNamespace(gcs_address="10.0.0.1:6379", get_node_id=lambda: "node", current_actor=None)
    ray = SimpleNamespace(get_runtime_context=lambda: context, remote=lambda _: made, kill=lambda _: None)
    monkeypatch.setattr(coordinator, "_ray", SimpleNamespace(**vars(coordinator._ray) | vars(ray)))
    monkeypatch.setattr(head, "on_node", lambda node: None)
    monkeypatch.setattr(coordinator._gpus, "slots", lambda gpus: asyncio.sleep(0, []))
    monkeypatch.setattr(head, "LOOK_SECONDS", 0)

    def without_room(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    async def trained() -> tuple[JobRecord, ClusterStatus]:
        await coordinator.open(str(tmp_path))
        number = await coordinator.submit("foreground", "vgg16", 1, 5, cast(Any, None))
        monkeypatch.setattr(os, "replace", without_room)
        record = await coordinator.wait(number)
        full = await coordinator.status()
        monkeypatch.setattr(os, "replace", plain)
        while not Path(record.result).exists():
            await asyncio.sleep(0)
        assert (await coordinator.status()).trouble is None
        return record, full

    record, full = asyncio.run(trained())
    assert record.state == "done"
    assert full.trouble == f"cannot write {tmp_path}/job-000001.json: No space left on device (choose another path)"
    assert history.read() == [record]
    assert serialization.read(record.result, TrainingRecord) == training_of()
