"""A process has ended also where nobody waits for it, as in a container without an init process."""

import math
import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue

import psutil
import pytest

from deeppool.collocation import job_process
from deeppool.collocation.containment import ResourceWatch
from deeppool.collocation.job_process import JobHistory, JobProcess
from deeppool.collocation.job_queue import BackgroundJob
from deeppool.evaluation import process_pool
from deeppool.job import Job
from deeppool.processes.end_of_processes import has_ended, wait_until_ended
from tests.collocation.test_supervisor import FakeProcess

WITHOUT_INIT = """
import subprocess, time
print(subprocess.Popen(["sleep", "600"]).pid, flush=True)
time.sleep(600)
"""

pytestmark = pytest.mark.processes


@pytest.fixture
def orphan() -> Iterator[psutil.Process]:
    """A process whose parent does not wait for it."""
    with subprocess.Popen([sys.executable, "-c", WITHOUT_INIT], stdout=subprocess.PIPE, text=True) as parent:
        found = psutil.Process(int(parent.stdout.readline()))
        try:
            yield found
        finally:
            found.kill()
            parent.kill()


def test_a_zombie_has_ended_and_what_runs_has_not(orphan: psutil.Process) -> None:
    assert wait_until_ended([orphan, psutil.Process()], 0) == [orphan, psutil.Process()]
    orphan.kill()
    assert wait_until_ended([orphan], math.inf) == []
    assert orphan.status() == psutil.STATUS_ZOMBIE
    assert not has_ended(psutil.Process())


def test_a_child_that_nobody_else_waits_for_has_ended() -> None:
    child = psutil.Popen([sys.executable, "-c", ""])
    assert wait_until_ended([child], math.inf) == []
    assert child.wait() == 0
    assert has_ended(child)


def test_a_background_job_does_not_wait_for_zombies(orphan: psutil.Process, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_process, "KILL_SECONDS", math.inf)
    history = JobHistory(BackgroundJob(Job("resnet18", (3, 64, 64), 4)))
    JobProcess(history, FakeProcess(0, SimpleQueue()), ResourceWatch(None), descendants={orphan}).kill_descendants()
    assert orphan.status() == psutil.STATUS_ZOMBIE


def test_a_notebook_that_is_ended_does_not_wait_for_zombies(
    orphan: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_pool, "EXIT_SECONDS", math.inf)
    monkeypatch.setattr(psutil.Process, "children", lambda self, recursive: [orphan])
    orphan.kill()
    with subprocess.Popen(["sleep", "600"], text=True) as notebook:
        process_pool._end_process_tree(notebook)
    assert orphan.status() == psutil.STATUS_ZOMBIE
