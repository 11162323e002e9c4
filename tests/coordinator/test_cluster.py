"""Jobs on two Ray nodes of this machine, which take each other for two machines.

Each node has one core and an address of its own on the loopback interface, so that ranks meet at a port and files
are sent from node to node.
"""

import importlib.util
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

import deeppool as dp
from deeppool.base import serialization
from deeppool.cli.app import app
from deeppool.coordinator import ray_connection
from deeppool.coordinator.history import ClusterStatus, JobRecord
from deeppool.coordinator.ray_host import with_agent_ports
from deeppool.errors import InvalidValueError, RunError
from deeppool.job import Job
from deeppool.records.run_record import RunRecord
from deeppool.records.training_record import TrainingRecord
from tests.processes.children import backgrounds, ranks
from tests.runs import test_elastic_ranks
from tests.runs.test_train import losses, make_job, make_plan
from tests.strategies import profile_from_times
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.processes,
    pytest.mark.usefixtures("in_the_checkout"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]

HEAD, OTHER = "127.0.0.1", "127.0.0.2"
SMALL = Job("examples.two_branch:two_branch", (), 4)
ENDLESS = 10**6
"""Updates that no test waits for."""
PATIENCE = 480.0
"""Seconds; more than enough to start ranks on a busy machine, and for a background at the lowest priority there."""
GONE_SECONDS = 60.0


@dataclass
class Nodes:
    """The cluster under test."""

    ray: Any
    cluster: Any
    other: Any
    folder: Path
    """For temporary files of all processes."""

    def add_other(self) -> Any:
        return self.cluster.add_node(
            num_cpus=1, node_ip_address=OTHER, temp_dir=f"{self.folder}/ray", include_log_monitor=False
        )

    def start(self) -> dp.Coordinator:
        return dp.Coordinator.start(self.cluster.address)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    # Ray's sockets need a short path.
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("TMPDIR", folder)  # of the processes; this one has chosen already
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        for name, value in ray_connection.ray_environment(on_loopback=True).items():
            patch.setenv(name, value)  # of the nodes, which this process starts
        ray = ray_connection.find_ray()
        patch.setattr(ray._private.services, "start_raylet", with_agent_ports(ray))
        from ray.cluster_utils import Cluster

        cluster = Cluster()
        try:
            # Ray notices a dead node, whose port is closed, in two seconds, not in twenty; a slow one is no dead one.
            soon = {
                "health_check_period_ms": 1000,
                "health_check_timeout_ms": 30_000,
                "health_check_failure_threshold": 2,
            }
            cluster.add_node(
                num_cpus=1,
                node_ip_address=HEAD,
                temp_dir=f"{folder}/ray",
                include_dashboard=False,
                include_log_monitor=False,
                no_monitor=True,
                _system_config=soon,
            )
            found = Nodes(ray, cluster, None, Path(folder))
            found.other = found.add_other()
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
            yield found
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture
def coordinator(nodes: Nodes) -> Iterator[dp.Coordinator]:
    """Jobs of a test do not meet those of another."""
    found = nodes.start()
    yield found
    for job in found.status().jobs:
        if not job.over:
            found.cancel(job.job)


def machine_of(process: psutil.Process) -> str:
    """Address of the Ray node that a process runs on."""
    words = [word for parent in process.parents() for word in parent.cmdline()]
    return next(word.partition("=")[2] for word in words if word.startswith("--node_ip_address="))


def running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def trained(coordinator: dp.Coordinator, *jobs: int) -> ClusterStatus:
    """The status once each of some jobs has made an update."""

    def all_have() -> bool:
        for job in jobs:
            record = coordinator.status().job(job)
            assert not record.over, record
            if not record.progress.update:
                return False
        return True

    wait_until(all_have, PATIENCE, "the jobs train")
    return coordinator.status()


@dataclass(frozen=True)
class Day:
    """A large foreground, a background beside it, and a second foreground that has to wait."""

    together: ClusterStatus
    first: JobRecord
    second: JobRecord
    beside: ClusterStatus
    """The foregrounds have ended, the background goes on."""
    background_processes: int
    priorities: set[int]
    """Of the runtimes, which have started these processes."""
    cancelled: JobRecord
    left: list[psutil.Process]
    files: list[Path]
    after: ClusterStatus


@pytest.fixture(scope="module")
def day(nodes: Nodes) -> Day:
    coordinator = nodes.start()
    background = coordinator.submit_background(SMALL, gpus=2)
    first = coordinator.submit(make_plan(2), make_job(), steps=6)
    second = coordinator.submit(make_plan(1), make_job(), steps=3)
    together = coordinator.status()
    ended = [coordinator.wait(job, PATIENCE) for job in (first, second)]
    beside = trained(coordinator, background)
    # A look at all processes may miss one that another one ends beside.
    wait_until(lambda: len(backgrounds()) == 2, PATIENCE, "both background processes")
    held = backgrounds()
    priorities = {process.parent().nice() for process in held}
    cancelled = coordinator.cancel(background)
    psutil.wait_procs(held, timeout=PATIENCE)
    left = [process for process in (*held, *ranks()) if running(process)]
    files = list(nodes.folder.glob("deeppool-*"))
    return Day(together, *ended, beside, len(held), priorities, cancelled, left, files, coordinator.status())


def test_a_training_over_two_nodes_is_the_training_of_one_machine(day: Day, warnings_of_other_tests: None) -> None:
    assert day.first.state == "done", day.first
    assert day.first.machines == (HEAD, OTHER)
    expected = dp.train(make_plan(2), make_job(), steps=6)
    record = serialization.read(day.first.result, TrainingRecord)
    assert losses(record) == losses(expected)
    assert (day.first.progress.update, day.first.progress.loss) == (6, losses(expected)[-1])


def test_a_gpu_holds_one_foreground_and_one_background_and_the_next_foreground_waits(day: Day) -> None:
    foreground, background, waiting = day.first.job, day.cancelled.job, day.second.job
    assert [(use.machine, use.foreground, use.background) for use in day.together.gpus] == [
        (HEAD, foreground, background),
        (OTHER, foreground, background),
    ]
    assert day.together.job(waiting).state == "queued"
    assert day.second.state == "done", day.second
    assert day.second.started >= day.first.ended
    assert day.beside.job(background).state == "running"
    assert day.beside.job(background).started <= day.first.ended


def test_what_ray_starts_has_the_priority_of_other_processes(day: Day) -> None:
    """Ray would start the coordinator, and all that it starts, at the lowest priority but four."""
    assert day.priorities == {psutil.Process().nice()}


def test_a_cancelled_job_leaves_a_record_and_no_process_or_file(day: Day) -> None:
    assert day.cancelled.state == "cancelled"
    assert day.cancelled.progress.update > 0
    assert day.cancelled.progress.loss is not None
    assert (day.background_processes, day.left, day.files) == (2, [], [])
    assert {use.foreground for use in day.after.gpus} | {use.background for use in day.after.gpus} == {None}


@pytest.mark.stress
def test_a_plan_takes_the_gpus_that_its_layers_use_and_a_killed_rank_ends_its_own_job(
    coordinator: dp.Coordinator,
) -> None:
    """Two jobs, each planned for two GPUs of which its layers use one."""
    killed, other = (coordinator.submit(only_on(gpu), make_job(), steps=ENDLESS) for gpu in (1, 0))
    together = trained(coordinator, killed, other)
    assert sorted(together.job(killed).gpus + together.job(other).gpus) == [0, 1]
    held = ranks()
    assert len(held) == 2
    (gpu,), (machine,) = together.job(killed).gpus, together.job(killed).machines
    (victim,) = (rank for rank in held if machine_of(rank) == machine)
    victim.kill()
    record = coordinator.wait(killed, PATIENCE)
    assert record.state == "failed"
    assert f"rank 0 on GPU {gpu} of {machine} was killed by signal 9 while it trained" in record.error
    assert "\n" not in record.error
    assert [rank for rank in held if running(rank)] == [rank for rank in held if rank != victim]
    assert coordinator.status().job(other).state == "running"
    coordinator.cancel(other)
    assert not any(map(running, held))


def only_on(gpu: int) -> Any:
    """A plan for two GPUs whose layers are all on one."""
    import dataclasses

    plan = make_plan(2)
    layers = tuple(dataclasses.replace(layer, gpus=(gpu,), gpu_count=1) for layer in plan.layers)
    return dataclasses.replace(plan, layers=layers, memory=(), gpu_seconds=plan.iteration_time)


@pytest.mark.stress
def test_the_shell_submits_a_model_by_its_name_and_cancels_what_waits(
    coordinator: dp.Coordinator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = dp.capture(SMALL.model).graph
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * len(graph.layers))
    plan = dp.save(dp.plan(profile, 2, 4), tmp_path / "plan.json")

    def told(*arguments: object) -> dict[str, Any]:
        with pytest.raises(SystemExit) as ended:
            app(["cluster", *map(str, arguments), "--json"])
        assert ended.value.code == 0
        return json.loads(capsys.readouterr().out)

    measured, waiting = told("submit", plan, "--steps", 2), told("submit", plan, "--steps", 2)
    assert (measured["state"], waiting["state"]) == ("running", "queued")
    assert told("cancel", waiting["job"])["state"] == "cancelled"
    done = coordinator.wait(measured["job"], PATIENCE)
    assert done.state == "done", done
    assert serialization.read(done.result, RunRecord).ranks == 2
    assert [job["state"] for job in told("status")["jobs"][-2:]] == ["done", "cancelled"]


def test_what_cannot_run_is_refused_at_once(coordinator: dp.Coordinator) -> None:
    with pytest.raises(
        InvalidValueError, match=r"the job needs 3 GPUs, the cluster has 2 \(at most --gpus 2, or add a node\)"
    ):
        coordinator.submit_background(SMALL, gpus=3)
    with pytest.raises(InvalidValueError, match="steps must be at least 1, got 0"):
        coordinator.submit(make_plan(2), make_job(), steps=0)
    with pytest.raises(InvalidValueError, match=r"gpus must be a whole number, got 1\.0"):
        coordinator.submit_background(SMALL, gpus=1.0)
    with pytest.raises(InvalidValueError, match="steps must be a whole number, got '3'"):
        coordinator.submit(make_plan(2), make_job(), steps="3")
    with pytest.raises(InvalidValueError, match="got no profile, no checkpoints and 1 restarts"):
        coordinator.submit(make_plan(2), make_job(), steps=1, restarts=1, min_ranks=1)
    with pytest.raises(InvalidValueError, match="min_ranks must be at most 2, got 3"):
        coordinator.submit(make_plan(2), make_job(), steps=1, min_ranks=3)
    with pytest.raises(InvalidValueError, match="there is no job 999"):
        coordinator.cancel(999)


@pytest.mark.stress
def test_a_job_goes_on_without_a_lost_node_and_on_the_next_one(
    nodes: Nodes, coordinator: dp.Coordinator, tmp_path: Path
) -> None:
    job = coordinator.submit(
        test_elastic_ranks.make_plan(2),
        test_elastic_ranks.make_job(seconds=0.005),
        steps=450,
        checkpoints=tmp_path,
        restarts=3,
        min_ranks=1,
        profile=test_elastic_ranks.make_profile(),
    )

    def reaches(gpu_count: int, updates: int) -> None:
        def has() -> bool:
            record = coordinator.status().job(job)
            assert not record.over, record
            return len(record.gpus) == gpu_count and record.progress.update >= updates

        wait_until(has, PATIENCE, f"it makes update {updates} on {gpu_count} GPUs")

    reaches(2, 110)
    nodes.cluster.remove_node(nodes.other, allow_graceful=False)
    reaches(1, 101)
    assert "of 2 planned" in str(coordinator.status().job(job))
    nodes.other = nodes.add_other()
    record = coordinator.wait(job, PATIENCE)
    assert record.state == "done", record
    result = serialization.read(record.result, TrainingRecord)
    assert losses(result) == pytest.approx(test_elastic_ranks.plain_losses(450), rel=1e-10, abs=1e-10)
    whole, fewer, again = result.attempts
    assert (len(whole.gpus), fewer.gpus, len(again.gpus)) == (2, whole.gpus[:1], 2)
    # Ray never takes the returned node for the lost one.
    assert again.gpus[1] not in whole.gpus
    assert (record.gpus, record.machines) == (again.gpus, (HEAD, OTHER))
    assert "was lost: its machine does not answer" in whole.ended
    assert (fewer.resumed_after, again.resumed_after % 100, again.last_update) == (100, 0, 450)
    assert not ranks()


@pytest.mark.stress
def test_jobs_end_with_their_coordinator_and_the_next_one_knows_them(nodes: Nodes) -> None:
    coordinator = nodes.start()
    job = coordinator.submit(make_plan(1), make_job(), steps=ENDLESS)
    trained(coordinator, job)
    held = ranks()
    assert held
    nodes.ray.kill(nodes.ray.get_actor("coordinator", namespace="deeppool"))
    wait_until(lambda: not any(map(running, held)), GONE_SECONDS, "the ranks end with their coordinator")
    with pytest.raises(RunError, match="the coordinator has ended"):
        coordinator.status()
    again = nodes.start()
    record = again.status().job(job)
    assert record.state == "failed"
    assert "the coordinator ended while it was running" in record.error
    assert again.submit_background(SMALL, steps=3) == job + 1
    done = again.wait(job + 1, PATIENCE)
    assert (done.state, done.progress.update) == ("done", 3)


@pytest.mark.stress
def test_a_lost_node_ends_its_jobs_and_the_rest_of_the_cluster_goes_on(nodes: Nodes) -> None:
    """The last test of the module: the node does not come back."""
    coordinator = nodes.start()
    job = coordinator.submit(make_plan(2), make_job(), steps=ENDLESS)
    large = coordinator.submit(make_plan(2), make_job(), steps=ENDLESS)
    small = coordinator.submit(make_plan(1), make_job(), steps=2)
    trained(coordinator, job)
    held = ranks()
    nodes.cluster.remove_node(nodes.other, allow_graceful=False)
    wait_until(lambda: not any(map(running, held)), GONE_SECONDS, "the ranks end")
    record = coordinator.wait(job, PATIENCE)
    assert record.state == "failed"
    assert f"of {OTHER} was lost: its machine does not answer" in record.error
    assert "needs 2 GPUs, the cluster has 1 left" in coordinator.wait(large, PATIENCE).error
    assert coordinator.wait(small, PATIENCE).state == "done"
    last = coordinator.stop()
    assert [use.machine for use in last.gpus] == [HEAD]
    assert not ranks()
