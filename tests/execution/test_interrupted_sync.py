"""A script that trains by another way of sending gradients leaves no process or file when it is ended, and resumes."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import deeppool as dp
from deeppool.execution.checkpoint import PARTIAL, latest
from tests.execution import soak_job
from tests.processes.children import gone
from tests.waiting import wait_until

START_SECONDS = END_SECONDS = 300.0
METHODS = {"transfers": lambda: dp.TransferScheduler(measured_updates=1), "eager": lambda: dp.EagerSGD(mode="majority")}
SCRIPT = """
import sys
import deeppool as dp
from tests.execution import soak_job
from tests.execution.test_interrupted_sync import METHODS

if __name__ == "__main__":
    dp.train(
        soak_job.plan(2), soak_job.job(), steps=1_000_000, checkpoints=sys.argv[2], checkpoint_every=2,
        gradient_sync=METHODS[sys.argv[1]](),
    )
"""


@pytest.mark.stress
@pytest.mark.processes
@pytest.mark.usefixtures("in_the_checkout")
@pytest.mark.parametrize("what", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("method", METHODS)
def test_an_ended_script_leaves_nothing_but_checkpoints(
    method: str, what: signal.Signals, tmp_path: Path, temporary: Path
) -> None:
    folder = tmp_path / "checkpoints"
    # torch makes the folder of its compile cache, which all programs of a user share, when a model is exported.
    cache = f"TORCHINDUCTOR_CACHE_DIR={tmp_path / 'compiled'}"
    command = ["env", f"TMPDIR={temporary}", cache, sys.executable, "-c", SCRIPT, method, str(folder)]
    shared = set(Path("/dev/shm").iterdir())
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as script:
        try:
            wait_until(lambda: script.poll() is not None or saved(folder), START_SECONDS, "a checkpoint")
            assert script.poll() is None, script.communicate()
            everything = psutil.Process(script.pid).children(recursive=True)
            # Two ranks, their loaders, what the ranks were forked from, and the watchdog of the folder.
            assert len(everything) >= 6
            used = {file.path for each in everything for file in memory_maps(each)}
            script.send_signal(what)
            _, error = script.communicate(timeout=END_SECONDS)
        finally:
            script.kill()
    # SIGTERM ends Python where it is; Ctrl-C is an exception there.
    assert script.returncode == -what
    assert ("KeyboardInterrupt" in error) == (what == signal.SIGINT)
    wait_until(lambda: all(map(gone, everything)), END_SECONDS, f"the end of {everything}")
    wait_until(lambda: not list(temporary.iterdir()), END_SECONDS, f"the end of the files in {temporary}")
    assert not {str(path) for path in set(Path("/dev/shm").iterdir()) - shared} & used
    assert not list(folder.glob(f"*{PARTIAL}")) or what == signal.SIGTERM
    resumed = dp.train(
        soak_job.plan(2), soak_job.job(), steps=int(latest(folder).name.removeprefix("step-")) + 2, checkpoints=folder,
        gradient_sync=METHODS[method](),
    )  # fmt: skip
    assert len(resumed.metrics) == 2
    assert not list(folder.glob(f"*{PARTIAL}"))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder of temporary files, whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="deeppool-") as folder:
        yield Path(folder)


def saved(folder: Path) -> bool:
    return folder.is_dir() and latest(folder) is not None


def memory_maps(process: psutil.Process) -> list:
    with contextlib.suppress(psutil.Error):
        return process.memory_maps()
    return []
