"""Processes of notebooks end with all that they started, and leave no file."""

import os
from pathlib import Path

import psutil
import pytest

from deeppool.evaluation.execution import NotebookTask
from deeppool.evaluation.process_pool import run_tasks

PAPERMILL = """
import subprocess, sys, time
from pathlib import Path

class PapermillExecutionError(Exception):
    pass

def execute_notebook(path, executed, arguments, config, **others):
    started = Path(arguments["started"])
    if Path(path).stem == "long":
        folder = Path(config.KernelManager.connection_file).parent
        subprocess.Popen([sys.executable, arguments["kernel"], folder, started], start_new_session=True)
        time.sleep(600)
    while not started.exists():
        time.sleep(0.01)
"""
KERNEL = """
import os, sys, time
from pathlib import Path

folder, started, parent = Path(sys.argv[1]), Path(sys.argv[2]), os.getppid()
whole = started.with_suffix(".new")
whole.write_text(str(os.getpid()))
whole.rename(started)
while os.getppid() == parent:
    time.sleep(0.01)
time.sleep(0.5)
folder.mkdir(parents=True, exist_ok=True)
(folder / "connection.json").touch()
"""
"""Makes the file of its sockets, as one that is starting does, before it notices that its parent is gone."""


@pytest.mark.slow
@pytest.mark.processes
def test_notebooks_that_are_ended_leave_no_folder_though_their_kernels_are_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "papermill.py").write_text(PAPERMILL)
    (tmp_path / "kernel.py").write_text(KERNEL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.getcwd()]))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    given = {"started": str(tmp_path / "started"), "kernel": str(tmp_path / "kernel.py")}
    long, short = (
        NotebookTask(name, tmp_path / f"{name}.ipynb", tmp_path / name, given, measures=False)
        for name in ("long", "short")
    )
    completed = run_tasks([long, short], jobs=2)
    assert next(completed).task == short
    kernel = psutil.Process(int((tmp_path / "started").read_text()))
    assert list(scratch.iterdir())
    completed.close()
    psutil.wait_procs([kernel], 300)
    assert list(scratch.iterdir()) == []
