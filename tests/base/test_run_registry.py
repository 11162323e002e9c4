"""Runs of a user are seen from every process of theirs, end when they are asked to, and leave nothing behind."""

import contextlib
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.base import cancellation, run_registry, serialization
from deeppool.collectives.partial.load_imbalance import fixed
from deeppool.errors import RunCancelledError, RunError
from deeppool.runs.mode_comparison.compare import compare_modes
from tests.command import Command
from tests.figures.records import two_layer_plan
from tests.interleaving.crossover.test_scheduler import make_job
from tests.runs.test_handle import Steps
from tests.waiting import wait_until

PATIENCE = 300

OTHER = """
import queue
from deeppool.base import cancellation, run_registry
from deeppool.errors import RunCancelledError
run_registry.INTERVAL = 0.01

class Graph:
    model = "tiny"

@run_registry.registered
def train(graph, *, on_progress):
    on_progress("update 3 of 9", 0.25)
    print("under way", flush=True)
    cancellation.wait(queue.SimpleQueue(), 600)

try:
    train(Graph(), on_progress=print)
except RunCancelledError as error:
    print(error, flush=True)
"""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(run_registry, "INTERVAL", 0.01)
    return tmp_path / "deeppool"


@contextlib.contextmanager
def other_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A run in another process."""
    command = [sys.executable, "-c", OTHER, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "update 3 of 9 0.25\n"
            assert process.stdout.readline() == "under way\n"
            wait_until(lambda: dp.running()[0].progress == 0.25)
            yield process
        finally:
            process.kill()


def test_a_run_is_seen_with_what_it_does_until_it_ends(runtime: Path) -> None:
    steps = Steps()
    assert dp.running() == ()
    run = dp.start(run_registry.registered(steps.climb), 2)
    steps.step()
    wait_until(lambda: dp.running()[0].progress == 0.5)
    (seen,) = dp.running()
    assert (seen.what, seen.doing, seen.progress, seen.pid) == ("climb 2", "update 1 of 2", 0.5, os.getpid())
    assert str(seen).startswith(f"{seen.name}: climb 2: update 1 of 2 (50 %, ")
    assert str(seen).endswith(f" in {Path.cwd()}")
    assert seen.alive
    steps.step()
    assert run.result(PATIENCE) == "the top"
    assert dp.running() == ()
    assert not seen.alive
    assert list(runtime.iterdir()) == []


def test_a_job_of_a_cluster_is_named_without_the_arguments_of_rays_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = "/lib/ray/_private/workers/default_worker.py"
    monkeypatch.setattr(sys, "argv", [worker, "--node-ip-address=127.0.0.1", "--raylet-name=/tmp/raylet"])
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    steps = Steps()
    run = dp.start(run_registry.registered(steps.climb), 1)
    wait_until(lambda: len(dp.running()) == 1)
    (seen,) = dp.running()
    assert str(seen).endswith(f", by deeppool cluster in {Path.cwd()}")
    steps.step()
    run.result()


def test_runs_are_seen_in_the_order_of_their_starts_and_one_is_stopped_without_the_other() -> None:
    @run_registry.registered
    def hold(name: str, *, on_progress=None) -> None:
        cancellation.wait(queue.SimpleQueue(), PATIENCE)

    runs = []
    for name in ("first", "second"):
        runs.append(dp.start(hold, name))
        wait_until(lambda: len(dp.running()) == len(runs))
    assert [run.what for run in dp.running()] == ["hold first", "hold second"]
    dp.running()[0].stop()
    with pytest.raises(RunCancelledError):
        runs[0].result(PATIENCE)
    assert [run.what for run in dp.running()] == ["hold second"]
    runs[1].cancel()
    assert dp.running() == ()


def test_what_a_run_starts_is_part_of_it() -> None:
    seen = []

    @run_registry.registered
    def inner(*, on_progress=None):
        seen.append(dp.running())

    @run_registry.registered
    def outer(*, on_progress=None):
        inner()

    outer()
    assert [[run.what for run in runs] for runs in seen] == [["outer"]]


def test_a_run_in_another_process_is_seen_and_stopped() -> None:
    with other_process("--steps", "9") as process:
        (run,) = dp.running()
        assert (run.what, run.doing, run.pid) == ("train tiny", "update 3 of 9", process.pid)
        assert run.where == "-c --steps 9"
        run.stop()
        assert process.stdout is not None
        assert process.stdout.readline() == "the run was cancelled, every process of it was ended\n"
        assert process.wait(PATIENCE) == 0
    assert dp.running() == ()
    run.stop()  # it has ended: there is nobody to ask


def test_a_killed_process_leaves_nothing_that_is_seen(runtime: Path) -> None:
    with other_process() as process:
        process.kill()
        process.wait(PATIENCE)
        assert len(list(runtime.iterdir())) == 2
        assert dp.running() == ()
        assert list(runtime.iterdir()) == []


def test_what_a_killed_process_of_the_same_number_left_is_in_nobodys_way(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_registry, "_NUMBERS", iter([7, 7]))
    run_registry.folder()
    os.mkfifo(runtime / f"{os.getpid()}-7.stop")
    seen = []
    run_registry.registered(lambda *, on_progress=None: seen.extend(dp.running()))()
    assert [run.name for run in seen] == [f"{os.getpid()}-7"]


def test_a_process_of_the_same_number_in_another_container_takes_no_place_of_a_run_that_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @run_registry.registered
    def hold(*, on_progress=None) -> None:
        cancellation.wait(queue.SimpleQueue(), PATIENCE)

    monkeypatch.setattr(run_registry, "_NUMBERS", iter([1, 1, 2]))
    runs = []
    for _ in range(2):
        runs.append(dp.start(hold))
        wait_until(lambda: len(dp.running()) == len(runs), 20)
    assert [run.name for run in dp.running()] == [f"{os.getpid()}-{number}" for number in (1, 2)]
    runs[1].cancel()
    assert [run.name for run in dp.running()] == [f"{os.getpid()}-1"]
    runs[0].cancel()


def test_a_run_whose_files_cannot_be_removed_returns_its_result(runtime: Path) -> None:
    @run_registry.registered
    def trained(*, on_progress=None) -> str:
        (name,) = (run.name for run in dp.running())
        # As on a disk that has become read-only.
        (runtime / f"{name}.json").unlink()
        (runtime / f"{name}.json").mkdir()
        return "the weights"

    assert trained() == "the weights"
    assert [path.suffix for path in runtime.iterdir()] == [".json"]


def test_a_run_of_another_machine_that_shares_the_home_is_left_alone(runtime: Path) -> None:
    seen = []
    run_registry.registered(lambda *, on_progress=None: seen.extend(dp.running()))()
    there = replace(seen[0], name="1-1", host="another", boot="b")
    before_this_start = replace(seen[0], name="2-1", boot="b")
    for run in (there, before_this_start):
        serialization.write(run, runtime / f"{run.name}.json")
    (runtime / "3-1.json").write_text("{")
    assert dp.running() == ()
    assert sorted(path.name for path in runtime.iterdir()) == ["1-1.json", "3-1.json"]


def test_only_the_user_may_enter_the_folder(runtime: Path, caplog: pytest.LogCaptureFixture) -> None:
    dp.running()
    assert runtime.stat().st_mode & 0o777 == 0o700
    runtime.chmod(0o750)
    with pytest.raises(RunError, match=r"is of user \d+ with mode 750, it must be of user \d+ with mode 700"):
        dp.running()
    with caplog.at_level(logging.WARNING):
        assert run_registry.registered(lambda *, on_progress: on_progress("half", 0.5) or "done")() == "done"
    assert "other processes cannot see this run" in caplog.text
    assert list(runtime.iterdir()) == []


def test_without_a_login_runs_are_told_of_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run_registry.folder() == tmp_path / "state" / "deeppool"


def test_a_call_in_the_own_thread_is_stopped_where_it_waits() -> None:
    @run_registry.registered
    def wait(*, on_progress=None):
        threading.Thread(target=dp.running()[0].stop).start()
        cancellation.wait(queue.SimpleQueue(), PATIENCE)

    with pytest.raises(RunCancelledError):
        wait()


def test_every_function_that_starts_processes_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def record(self: run_registry._Registration, what: str, cancels: object) -> None:
        seen.append(what)
        raise ZeroDivisionError

    monkeypatch.setattr(run_registry._Registration, "__init__", record)
    for function, argument in ((dp.train, two_layer_plan()), (dp.launch, two_layer_plan()), (dp.profile, "resnet18")):
        with pytest.raises(ZeroDivisionError):
            function(argument)
    with pytest.raises(ZeroDivisionError):
        dp.measure_network()
    with pytest.raises(ZeroDivisionError):
        dp.measure_interference()
    with pytest.raises(ZeroDivisionError):
        compare_modes("digits", fixed([0.0]))
    for function, jobs in (
        *((dp.compare_orders, [make_job()]), (dp.measure_jobs, [make_job()])),
        *((dp.compare_techniques, make_job()), (dp.measure_transfers, make_job())),
    ):
        with pytest.raises(ZeroDivisionError):
            function(jobs, global_batch=8)
    crossover = dp.CrossoverScheduler([make_job()], global_batch=8)
    for call in (crossover.train, crossover.measure):
        with pytest.raises(ZeroDivisionError):
            call(3)
    assert seen == [
        *("train tiny", "launch tiny", "profile resnet18", "measure_network", "measure_interference"),
        *("compare_modes digits", "compare_orders", "measure_jobs", "compare_techniques TrainingJob"),
        *("measure_transfers TrainingJob", "train CrossoverScheduler", "measure CrossoverScheduler"),
    ]


# -- from the command line --------------------------------------------------------------------------


def test_the_command_lists_runs_and_ends_one(deeppool: Command) -> None:
    assert deeppool("running").out == "nothing is under way\n"
    assert deeppool("running", "--json").json == {"running": []}
    with other_process() as process:
        (run,) = dp.running()
        assert deeppool("running").out.startswith(f"{run.name}: train tiny: update 3 of 9 (25 %, ")
        (told,) = deeppool("running", "--json").json["running"]
        assert (told["format"], told["name"], told["pid"]) == ("deeppool/run-under-way", run.name, process.pid)
        outcome = deeppool("running", "--stop", run.name)
        assert (outcome.code, outcome.out) == (0, f"stopped {run.name}: train tiny\n")
        assert process.wait(PATIENCE) == 0


def test_a_run_that_is_not_there_cannot_be_ended(deeppool: Command) -> None:
    outcome = deeppool("running", "--stop", "1-1")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: no run '1-1' is in progress: there is none (see deeppool running)\n"
    assert deeppool("running", "--stop", "all", "--json").json == {"stopped": []}
