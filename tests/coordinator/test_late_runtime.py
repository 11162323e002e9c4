"""A runtime that answers no more, on a machine that is stopped or out of memory, but is not dead for Ray."""

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from deeppool.coordinator import ray_launcher, runtime
from deeppool.coordinator.ray_launcher import RayLauncher, RaySlot
from deeppool.coordinator.runtime import Runtime
from deeppool.errors import RankFailedError, RunError
from deeppool.processes.managed_process import ManagedProcess
from deeppool.processes.rank_group import RankGroup

pytestmark = pytest.mark.processes

JOB = 1
PROGRAM = "tests.processes.holding_child"


class GetTimeoutError(Exception):
    """As Ray's."""


class RayActorError(Exception):
    """As Ray's."""


class Asked:
    """What a runtime is asked. As a reference of Ray, it may be an argument of what is asked next."""

    def __init__(self, ask: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], late: bool) -> None:
        self._ask, self._arguments, self._named, self.late = ask, arguments, named, late
        self._answers: list[Any] = []

    @property
    def answer(self) -> Any:
        if not self._answers:
            arguments = [each.answer if isinstance(each, Asked) else each for each in self._arguments]
            self._answers.append(self._ask(*arguments, **self._named))
        return self._answers[0]


class StoppableRuntime:
    """A runtime's handle; what is asked while it is stopped waits until it goes on."""

    def __init__(self) -> None:
        self.runtime = Runtime("cpu", "127.0.0.1", 0)
        self.stopped = False
        self._waiting: list[Asked] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **named: Any) -> Asked:
            asked = Asked(getattr(self.runtime, name), arguments, named, self.stopped)
            if self.stopped:
                self._waiting.append(asked)
            return asked

        return SimpleNamespace(remote=remote)

    @property
    def processes(self) -> list[psutil.Process]:
        """Those that it started and did not forget."""
        return [psutil.Process(started.child.process.pid) for started in self.runtime._started.values()]

    def go_on(self) -> None:
        self.stopped = False
        while self._waiting:
            _ = self._waiting.pop(0).answer


def get(asked: Asked, timeout: float | None = None) -> Any:
    if asked.late:
        assert timeout is not None, "it waits forever"
        raise GetTimeoutError
    return asked.answer


Nodes = Callable[[], StoppableRuntime]


@pytest.fixture
def new_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    errors = {"RayError": Exception, "RayActorError": RayActorError, "GetTimeoutError": GetTimeoutError}
    ray = SimpleNamespace(get=get, put=lambda files: files, exceptions=SimpleNamespace(**errors))
    monkeypatch.setattr(ray_launcher, "find_ray", lambda: ray)
    nodes: list[StoppableRuntime] = []

    def new() -> StoppableRuntime:
        nodes.append(StoppableRuntime())
        return nodes[-1]

    yield new
    for node in nodes:
        node.runtime.end(JOB)


def launcher_of(*nodes: StoppableRuntime) -> RayLauncher:
    slots = [RaySlot(number, "machine", node) for number, node in enumerate(nodes)]
    return RayLauncher(JOB, slots, str(Path.cwd()), reassign=lambda: slots)


def test_the_ranks_end_with_one_whose_runtime_is_late_and_it_ends_when_that_goes_on(new_node: Nodes) -> None:
    node, late = new_node(), new_node()
    with RankGroup(launcher_of(node, late)) as group:
        for _ in range(2):
            group.start(PROGRAM)
        (here,), (there,) = node.processes, late.processes
        late.stopped = True
        group.send("train")
        with pytest.raises(RankFailedError, match="rank 1 on GPU 1 of machine was lost: its machine does not answer"):
            group.collect("done", 600.0, "while it trained")
    assert not here.is_running()
    assert there.is_running()
    late.go_on()
    assert not there.is_running()


def test_a_runtime_that_is_late_for_a_start_fails_it_and_leaves_no_process_when_it_goes_on(
    new_node: Nodes, tmp_path: Path
) -> None:
    node, late = new_node(), new_node()
    launcher = launcher_of(node, late)
    late.stopped = True
    with pytest.raises(RankFailedError, match="rank 1 on GPU 1 of machine cannot start: its machine does not answer"):
        launcher.distribute_files(tmp_path)
    with pytest.raises(RankFailedError, match="rank 1 on GPU 1 of machine cannot start: its machine does not answer"):
        launcher.start(1, PROGRAM, "rank 1")
    late.go_on()
    (started,) = late.runtime._started.values()
    assert started.child.exit_code() == -signal.SIGKILL


def test_the_next_attempt_of_a_job_ends_what_is_left_of_the_one_before(new_node: Nodes, tmp_path: Path) -> None:
    node = new_node()
    launcher = launcher_of(node)
    launcher.distribute_files(tmp_path)
    launcher.start(0, PROGRAM, "rank 0")
    (left,) = node.processes
    launcher.distribute_files(tmp_path)
    assert not left.is_running()
    assert node.processes == []


def test_a_job_that_ends_while_its_process_starts_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    node, made = Runtime("cpu", "127.0.0.1", 0), []

    def start_late(*arguments: Any, **named: Any) -> ManagedProcess:
        made.append(ManagedProcess(*arguments, **named))
        node.end(JOB)
        return made[0]

    monkeypatch.setattr(runtime, "ManagedProcess", start_late)
    with pytest.raises(RunError, match="job 1 has ended"):
        node.start(JOB, PROGRAM, "rank 0", str(Path.cwd()))
    assert made[0].exit_code() is not None


def test_files_and_a_rendezvous_for_a_job_that_has_ended_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    node = Runtime("cpu", "127.0.0.1", 0)
    node.end(JOB)
    with pytest.raises(RunError, match="job 1 has ended"):
        node.prepare(JOB, {"model": b"weights"})
    with pytest.raises(RunError, match="job 1 has ended"):
        node.rendezvous(JOB)
    assert list(tmp_path.iterdir()) == []
    assert node._stores == {}
