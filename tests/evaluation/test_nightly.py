"""Nightly runs of small notebooks: one measures, one fails; interrupted, over budget, on a full disk."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import tests.processes.children
from deeppool.base import serialization
from deeppool.errors import DocumentError, InvalidValueError, RunError
from deeppool.evaluation.archive import NightlyArchive
from deeppool.evaluation.nightly import machine_with_cores, nightly, versions
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome
from deeppool.evaluation.notebooks import evaluate
from deeppool.evaluation.record import Evaluation
from deeppool.evaluation.regression_report import RegressionReport
from deeppool.processes import stop_detector
from tests.command import Command
from tests.evaluation.folders import SETUP, write_notebook

pytestmark = [pytest.mark.slow, pytest.mark.processes]

FIGURE = (
    "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a', 'b'], y=[1, 2]), layout={'title': {'text': 'Bars'}})"
)
MEASURES = """
findings = Findings("clock", "A clock", {"gpus": gpus}, device="here")
findings.number("speed-up", 1.5, "x", "simulated", paper=1.4, why="made up")
findings.check("it gains", True, "1.5x")
findings.save(output)
"""
LOGS = "with open(log, 'a') as stream:\n    stream.write('run\\n')"
"""Counts the runs of a notebook in a file outside the output folder."""
KILLS = "import psutil\npsutil.Process().parent().kill()"
"""Kills the process that runs the notebook."""
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
STOPS = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
FOREVER = "import threading\nthreading.Event().wait()"

WAITS_THE_FIRST_TIME = """
import subprocess
from pathlib import Path
if not Path(log).exists():
    child = subprocess.Popen(["sleep", "1000"])
    Path(log).write_text(str(child.pid))
    child.wait()
"""


@pytest.fixture
def notebooks(tmp_path: Path) -> Path:
    """One that measures and logs each of its runs, one that fails."""
    folder, log = tmp_path / "notebooks", {"log": str(tmp_path / "runs")}
    write_notebook(folder / "01-clock.ipynb", SETUP, LOGS, MEASURES, FIGURE, title="A clock", measures=True, quick=log)
    write_notebook(folder / "evaluation" / "fig1-fails.ipynb", "1 / 0", title="It fails")
    return folder


def runs(tmp_path: Path) -> int:
    return (tmp_path / "runs").read_text().count("run") if (tmp_path / "runs").exists() else 0


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def kernels() -> list[psutil.Process]:
    return [process for process in tests.processes.children.children() if "ipykernel_launcher" in process.cmdline()]


def unfinished(names: tuple[str, ...], *outcomes: NotebookOutcome) -> NightlyRun:
    """An interrupted run of a day long ago."""
    started = "2026-01-05T02:00:00+00:00"
    return NightlyRun("", "quick", machine_with_cores(), names, started, "", versions(), outcomes)


def interrupt_when(path: Path) -> None:
    """As Ctrl-C does, once a file has something in it."""
    while not (path.exists() and path.read_text()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


def test_a_failed_notebook_leaves_the_others_and_the_next_run_is_compared(notebooks: Path, tmp_path: Path) -> None:
    write_notebook(notebooks / "evaluation" / "fig2-killed.ipynb", KILLS, FOREVER, title="It is killed")
    first = nightly(tmp_path / "nights", notebooks=notebooks)
    found = first.report
    broken, killed = found.broken
    assert (broken.notebook, broken.since) == ("fig1", found.night)
    assert "ZeroDivisionError: division by zero (see fig1/fig1-fails.ipynb)" in broken.problem
    assert killed.problem == "the process of notebook fig2 was killed by signal 9"
    assert not found.fine and not found.moved and not found.not_run
    assert serialization.read(first.folder / "verdict.json", RegressionReport) == found
    kept = serialization.read(first.folder / "night.json", NightlyRun)
    assert [(x.name, x.title, x.state) for x in kept.outcomes] == [
        ("clock", "A clock", "done"),
        ("fig1", "It fails", "failed"),
        ("fig2", "It is killed", "failed"),
    ]
    for path in ("index.html", "clock/01-clock.html", "clock/01-clock.ipynb", "fig1/fig1-fails.html"):
        assert (first.folder / path).stat().st_size > 0
    assert serialization.read(first.folder / "clock" / "record.json", Evaluation).numbers[0].paper == 1.4
    assert {path.name for path in (tmp_path / "nights").iterdir()} == {".lock", first.folder.name}

    _, card = str(first).split(f"{first.folder / 'index.html'}\n\n")
    verdict, _, step = card.split("\n")
    assert verdict.startswith("  as before  no ")
    assert "2 notebooks failed" in verdict
    assert step.startswith(f"  deeppool nightly -o {tmp_path / 'nights'} --notebooks {notebooks} fig1,")

    shutil.rmtree(notebooks / "evaluation")
    second = nightly(tmp_path / "nights", notebooks=notebooks)
    assert second.folder.name == f"{first.folder.name}-2"
    assert second.report.fine
    assert second.report.compared == (first.report.night,)
    assert runs(tmp_path) == 2
    assert kernels() == []


def test_a_notebook_whose_kernel_dies_is_kept_with_its_report(tmp_path: Path) -> None:
    write_notebook(tmp_path / "notebooks" / "01-dies.ipynb", "print('so ' + 'far')", DIES)
    with pytest.raises(RunError, match="the kernel of notebook dies died"):
        evaluate(["dies"], tmp_path, notebooks=tmp_path / "notebooks")
    assert "so far" in (tmp_path / "dies" / "01-dies.html").read_text()


@pytest.fixture
def control_c() -> Iterator[None]:
    """Handles SIGINT, which a shell that starts tests in the background has them ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_run_leaves_no_process_and_is_continued_by_the_same_call(
    notebooks: Path, tmp_path: Path, control_c: None
) -> None:
    shutil.rmtree(notebooks / "evaluation")
    begun = tmp_path / "begun"
    write_notebook(notebooks / "02-late.ipynb", WAITS_THE_FIRST_TIME, measures=True, quick={"log": str(begun)})
    threading.Thread(target=interrupt_when, args=(begun,), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        nightly(tmp_path / "nights", notebooks=notebooks)
    with suppress(psutil.NoSuchProcess):
        assert tests.processes.children.gone(psutil.Process(int(begun.read_text())))
    assert kernels() == []
    assert runs(tmp_path) == 1
    assert not [path for path in (tmp_path / "nights").iterdir() if not path.name.startswith(".")]
    whole = nightly(tmp_path / "nights", notebooks=notebooks)
    assert whole.report.fine and whole.report.notebooks == 2
    assert runs(tmp_path) == 1


@pytest.mark.stress
def test_an_interrupted_run_of_other_notebooks_is_closed_as_it_is(notebooks: Path, tmp_path: Path) -> None:
    archive = NightlyArchive(tmp_path / "nights")
    failed = NotebookOutcome("fig1", "It fails", "failed", "boom", False, {}, 1.0, "", "")
    archive.save_unfinished(unfinished(("clock", "fig1"), failed))
    found = nightly(archive.folder, ["clock"], notebooks=notebooks)
    closed, second = archive.runs()
    assert (closed.name, second.name) == ("2026-01-05", found.folder.name)
    assert closed.outcome("clock").problem == "the nightly run was interrupted"
    assert serialization.read(archive.folder / closed.name / "verdict.json", RegressionReport).not_run == (
        "clock: the nightly run was interrupted",
    )
    assert found.report.fine


def test_a_stopped_kernel_fails_its_notebook_and_the_others_run_and_the_command_exits_with_1(
    notebooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deeppool: Command
) -> None:
    # Without a budget it would be waited for forever.
    monkeypatch.setattr(stop_detector, "STOPPED_SECONDS", 1.0)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    write_notebook(notebooks / "evaluation" / "fig1-fails.ipynb", STOPS)
    done = deeppool("nightly", "fig1", "clock", "-o", tmp_path / "nights", "--notebooks", notebooks, "--json")
    assert (done.code, done.json["fine"]) == (1, False)
    (stopped,) = done.json["verdict"]["broken"]
    assert stopped["notebook"] == "fig1"
    assert stopped["problem"] == "notebook fig1: a signal stopped its process for 1 s, and it was ended"
    assert Path(done.json["folder"], "index.html").is_file()
    # The process that wrote the kernel's connection file was killed.
    assert not any(temporary.iterdir())
    assert runs(tmp_path) == 1
    assert kernels() == []


RUN = """
import sys
from deeppool.evaluation.nightly import nightly
nightly(sys.argv[1], ["fig1"], notebooks=sys.argv[2])
"""


def test_a_killed_nightly_run_leaves_no_process_and_no_file_in_the_temporary_folder(
    notebooks: Path, tmp_path: Path
) -> None:
    temporary, log = tmp_path / "temporary", tmp_path / "runs"
    temporary.mkdir()
    write_notebook(
        notebooks / "evaluation" / "fig1-fails.ipynb", SETUP, LOGS, FOREVER, title="It waits", quick={"log": str(log)}
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", RUN, tmp_path / "nights", notebooks], env=environment) as killed:
        while not log.exists():
            assert killed.poll() is None
            time.sleep(0.05)
        assert any(temporary.iterdir())
        started = psutil.Process(killed.pid).children(recursive=True)
        killed.kill()
    _, alive = psutil.wait_procs(started, 60)
    assert alive == []
    assert not any(temporary.iterdir())


def test_a_budget_ends_what_runs_and_says_what_did_not_begin(notebooks: Path, tmp_path: Path) -> None:
    write_notebook(notebooks / "evaluation" / "fig1-fails.ipynb", FOREVER)
    found = nightly(tmp_path / "nights", ["fig1", "clock"], notebooks=notebooks, budget=1.0).report
    assert len(found.not_run) == 2 and not found.fine
    assert found.not_run[0].startswith("fig1: the budget of 1 s was spent while it ran")
    assert found.not_run[1] == "clock: the budget of 1 s was spent before it began"
    assert runs(tmp_path) == 0
    assert kernels() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_leaves_the_earlier_runs_whole_and_the_same_call_continues(notebooks: Path, tmp_path: Path) -> None:
    shutil.rmtree(notebooks / "evaluation")
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", disk]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        archive = NightlyArchive(disk / "nights")
        archive.publish(replace(unfinished(()), name="2026-01-05", finished="2026-01-05T03:00:00+00:00"))
        before = contents(archive.folder)
        filler = disk / "filler"
        with filler.open("wb") as stream:
            free = shutil.disk_usage(disk).free
            stream.write(b"x" * (free - 20_000))
        try:
            second = nightly(disk / "nights", notebooks=notebooks)
        except DocumentError as error:
            assert "No space left on device" in str(error)
        else:
            pytest.fail(f"nothing failed on the full disk: {second}")
        assert before.items() <= contents(archive.folder).items()
        assert [run.name for run in archive.runs()] == ["2026-01-05"]
        filler.unlink()
        assert nightly(disk / "nights", notebooks=notebooks).report.compared == ("2026-01-05",)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"names": ["fig99"]}, "no notebook 'fig99': there are clock, fig1"),
        ({"budget": 0.0}, "budget must be more than 0 s, got 0"),
        ({"budget": float("nan")}, "budget must be more than 0 s, got nan"),
        ({"keep": 0}, "keep must be at least 1, got 0"),
        ({"jobs": 0}, "jobs must be at least 1, got 0"),
    ],
)
def test_an_invalid_argument_is_refused_before_the_folder_is_created(
    arguments: dict, phrase: str, notebooks: Path, tmp_path: Path
) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        nightly(tmp_path / "nights", notebooks=notebooks, **arguments)
    assert not (tmp_path / "nights").exists()
