"""Live runs with killed or stopped processes: the error that is reported, and no process left."""

import contextlib
import dataclasses
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

import deeppool as dp
from deeppool.base.live_sample import LiveSample
from deeppool.cluster.cluster import find_cluster
from deeppool.errors import RankFailedError
from deeppool.execution import ranks as ranks_module
from deeppool.execution.stages import stages_of
from deeppool.planning.plan import Plan
from deeppool.processes import stop_detector
from deeppool.records.run_record import RunRecord
from tests.processes.children import backgrounds, gone, kill_all, ranks, running
from tests.strategies import profile_from_times
from tests.waiting import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("in_the_checkout")]

EXAMPLE = "examples.two_branch:two_branch"
GLOBAL_BATCH = 4
START_SECONDS = 300
"""More than enough to import torch on a busy machine."""
END_SECONDS = 60
"""More than enough to end on a busy machine, but for what the kernel kills at the lowest priority."""
LONG = 600
"""Seconds that no test waits for: a run of this length is ended by its fault."""


def make_plan(model: str, ranks: int = 2) -> Plan:
    """A plan that reshards, by times made up."""
    graph = dp.capture(model).graph
    profile = profile_from_times(graph, [lambda batch: 1e-3 * batch] * len(graph.layers))
    return resharding(dp.plan(profile, find_cluster("loopback", ranks), GLOBAL_BATCH))


def resharding(plan: Plan) -> Plan:
    """The plan with its layers by turns on all ranks, the first, the last, and all."""
    everybody = tuple(range(plan.gpus))
    sets = [everybody, (0,), everybody[-1:], everybody]
    layers = [
        dataclasses.replace(layer, gpus=sets[index % 4], gpu_count=len(sets[index % 4]))
        for index, layer in enumerate(plan.layers)
    ]
    return dataclasses.replace(plan, layers=tuple(layers))


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = make_plan(EXAMPLE)
    assert len({stage.layout.gpus for stage in stages_of(plan)}) == 3
    return dp.save(plan, tmp_path_factory.mktemp("plan") / "plan.json")


@pytest.fixture(scope="module")
def one_rank_plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dp.save(make_plan(EXAMPLE, ranks=1), tmp_path_factory.mktemp("plan") / "plan.json")


# -- processes --------------------------------------------------------------------------------------


@contextlib.contextmanager
def launched(
    plan: Plan, *, may_measure: threading.Event | None = None, **arguments: object
) -> Iterator["Future[RunRecord]"]:
    """Starts a run in a thread of this process and waits until it measures.

    Args:
        plan: to run.
        may_measure: the run waits for it before it measures.
        arguments: of ``dp.launch``.
    """
    measuring = threading.Event()

    def on_progress(what: str, share: float) -> None:
        if what.startswith("measuring"):
            measuring.set()
            if may_measure is not None:
                assert may_measure.wait(START_SECONDS)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(dp.launch, plan, on_progress=on_progress, **arguments)
        future.add_done_callback(lambda _: measuring.set())
        assert measuring.wait(START_SECONDS)
        if future.done():
            # It never came to measuring: the error says why.
            future.result()
        try:
            yield future
        finally:
            if may_measure is not None:
                may_measure.set()
            # A failed test does not wait for its run.
            for process in [] if future.done() else ranks():
                process.kill()


# -- deaths -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.stress), 1])
def test_a_killed_rank_ends_everything_and_is_named(victim: int, plan_file: Path) -> None:
    with launched(dp.load(plan_file), background=EXAMPLE if victim else None, seconds=LONG) as run:
        everything = ranks() + backgrounds()
        assert len(everything) == (4 if victim else 2)
        ranks()[victim].send_signal(signal.SIGKILL)
        error = run.exception(timeout=END_SECONDS)
    assert isinstance(error, RankFailedError)
    assert f"rank {victim} was killed by signal 9" in str(error)
    assert "\n" not in str(error)
    assert all(map(gone, everything))


@pytest.mark.slow
def test_a_stopped_rank_ends_everything_and_is_named(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with launched(dp.load(plan_file), seconds=LONG) as run:
        # Not before: on a busy machine the first update may take as long.
        monkeypatch.setattr(ranks_module, "MIN_TIMEOUT", 6.0)
        monkeypatch.setattr(ranks_module, "FIRST_UPDATE_SECONDS", 12.0)
        monkeypatch.setattr(ranks_module, "TIMEOUT_UPDATES", 3.0)
        everything = ranks()
        everything[1].send_signal(signal.SIGSTOP)
        error = run.exception(timeout=END_SECONDS)
    assert isinstance(error, RankFailedError)
    assert re.match(r"rank 1 hangs: no heartbeat for \d+ s .*, waited for by rank 0 in ", str(error))
    assert "\n" not in str(error)
    assert all(map(gone, everything))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "how"),
    [(signal.SIGKILL, "was killed by signal 9"), (signal.SIGSTOP, "was stopped by a signal for 1 s, and then killed")],
    ids=["killed", "stopped"],
)
def test_a_lost_background_job_does_not_affect_the_foreground(
    what: signal.Signals, how: str, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_detector, "STOPPED_SECONDS", 1.0)
    samples: list[LiveSample] = []
    lost = threading.Event()
    # Equals of the foreground: at the lowest priority one may get nothing where something else uses its core.
    choices = {"background": EXAMPLE, "policy": "naive", "seconds": 1, "on_sample": samples.append}
    with launched(dp.load(plan_file), may_measure=lost, **choices) as run:
        everything = ranks() + backgrounds()
        backgrounds()[1].send_signal(what)
        lost.set()
        record = run.result(timeout=START_SECONDS)
    assert record.background.ended == f"background job of rank 1 {how}"
    # It was reported while the run went on.
    assert [job.reason for job in samples[-1].background] == [None, record.background.ended]
    assert samples[-1].background[0].samples > 0
    assert record.background.throughput > 0
    # The other rank's background job went on.
    assert {span.gpu for span in record.timeline.spans if span.kind == "background"} <= {0}
    assert record.foreground.throughput > 0
    assert all(map(gone, everything))


@pytest.mark.slow
def test_the_foreground_record_is_kept_when_every_background_job_is_killed(one_rank_plan_file: Path) -> None:
    killed = threading.Event()
    # At the lowest priority it would take minutes to die where something else uses its core.
    choices = {"background": EXAMPLE, "policy": "naive", "seconds": 1}
    with launched(dp.load(one_rank_plan_file), may_measure=killed, **choices) as run:
        everything = ranks() + backgrounds()
        backgrounds()[0].send_signal(signal.SIGKILL)
        killed.set()
        record = run.result(timeout=START_SECONDS)
    assert record.background.ended.startswith("background job of rank 0 was killed by signal 9")
    assert record.background.harvest == 0
    assert record.foreground.throughput > 0
    assert all(map(gone, everything))


LAUNCHER = """
import sys, deeppool
deeppool.launch(
    deeppool.load(sys.argv[1]), background=sys.argv[2], seconds=float(sys.argv[3]),
    on_progress=lambda what, share: print(what, flush=True),
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", [pytest.param("starting", marks=pytest.mark.stress), "measuring"])
def test_no_process_survives_a_killed_launcher(
    moment: str, plan_file: Path, one_rank_plan_file: Path, tmp_path: Path
) -> None:
    plan, count = (one_rank_plan_file, 1) if moment == "starting" else (plan_file, 2)
    command = [sys.executable, "-c", LAUNCHER, str(plan), EXAMPLE, str(LONG)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as launcher:
        try:
            assert any(line.startswith(moment) for line in launcher.stdout)
            pid = launcher.pid
            wait_until(lambda: len(ranks(pid) + backgrounds(pid)) == 2 * count, START_SECONDS, "all started")
            everything = ranks(pid) + backgrounds(pid)
        finally:
            launcher.kill()
    try:
        wait_until(lambda: all(map(gone, everything)), START_SECONDS, f"the end of {everything}")
    finally:
        kill_all(everything)
    wait_until(lambda: list(tmp_path.iterdir()) == [], END_SECONDS, "the end of the folder with the plan and the model")


HEEDING_CONTROL_C = """
import signal
# A job that a shell put into the background ignores Ctrl-C, and so would its children: these tests may be one.
signal.signal(signal.SIGINT, signal.default_int_handler)
from deeppool.cli import main
main()
"""


@pytest.mark.slow
def test_control_c_ends_every_process_and_is_reported_in_one_line(one_rank_plan_file: Path, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-c", HEEDING_CONTROL_C, "run", str(one_rank_plan_file), "--background", EXAMPLE),
        *("--seconds", str(LONG), "-o", str(tmp_path / "run.json"), "--json"),
    ]
    # As in a terminal, where Ctrl-C is sent to the whole process group that is in the foreground.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as launcher:
        try:
            wait_until(lambda: _is_under_way(launcher.pid), START_SECONDS, "the background job has its priority")
            everything = psutil.Process(launcher.pid).children(recursive=True)
            os.killpg(launcher.pid, signal.SIGINT)
            out, error = launcher.communicate(timeout=END_SECONDS)
        finally:
            launcher.kill()
    assert (launcher.returncode, out) == (1, "")
    *before, message = error.splitlines()
    assert message == "error: interrupted; every process of the run was ended, nothing was saved"
    assert before == []
    what = "a rank, its background job, a spinner, what they were forked from, and the keeper of the folder"
    assert len(everything) == 5, what
    assert all(map(gone, everything))
    assert list(tmp_path.iterdir()) == []


def _is_under_way(launcher: int) -> bool:
    """Whether a background job has lowered its priority, as it does when it is ready, beside a rank and a spinner."""
    jobs = backgrounds(launcher)
    beside = ranks(launcher) and running("collocation.spinner", launcher)
    return bool(jobs and beside) and os.sched_getscheduler(jobs[0].pid) == os.SCHED_IDLE


# -- models -----------------------------------------------------------------------------------------

MODEL = """
from torch import nn

def model():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear({features}, 10))

model.input_shape = (3, 8, 8)
"""


def test_a_model_changed_since_it_was_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    source = tmp_path / "changing_model.py"
    source.write_text(MODEL.format(features=8 * 6 * 6))
    path = dp.save(make_plan("changing_model:model", ranks=1), tmp_path / "plan.json")
    monkeypatch.delitem(sys.modules, "changing_model")
    source.write_text(MODEL.format(features=8 * 6 * 6).replace("nn.ReLU", "nn.GELU"))
    with pytest.raises(
        RankFailedError, match="model changing_model:model has changed since the plan was made"
    ) as caught:
        dp.launch(dp.load(path), steps=1)
    assert "profile and plan it again" in str(caught.value)
    assert ranks() == []
    sys.modules.pop("changing_model", None)


@pytest.mark.slow
def test_a_model_defined_only_in_this_process_can_be_launched() -> None:
    class LocalModel(nn.Module):
        """A class as if it were defined in a notebook: no process can import it."""

        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 8, 3)
            self.head = nn.Linear(8, 10)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.head(torch.relu(self.convolution(images)).mean((2, 3)))

    profile = dp.profile(dp.capture(LocalModel(), (3, 8, 8)), device="cpu", batch_sizes=[2, GLOBAL_BATCH])
    plan = dp.plan(profile, find_cluster("loopback", 2), GLOBAL_BATCH)
    record = dp.launch(resharding(plan), steps=2)
    assert record.model == "LocalModel"
    assert record.ranks == 2
    assert record.foreground.iteration_time.count == 2
