"""What a coordinator keeps of jobs, and what is told where there is no cluster."""

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import deeppool as dp
from deeppool.coordinator import client, ray_connection
from deeppool.coordinator.history import ClusterStatus, GpuUse, History, JobProgress, JobRecord
from deeppool.coordinator.ray_connection import Joined
from deeppool.errors import DocumentError, InvalidValueError, RunError

QUEUED = JobRecord(3, "foreground", "vgg16", 2, 500, "2026-11-21T12:00:00")
RUNNING = replace(
    QUEUED,
    state="running",
    gpus=(0, 2),
    machines=("10.0.0.1", "10.0.0.2"),
    started="2026-11-21T12:00:01",
    progress=JobProgress(7, 2.5, 0.25, "training"),
)
DONE = replace(RUNNING, state="done", ended="2026-11-21T12:09:00", result="job-000003-record.json")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return ray_connection.state_folder()


def test_the_next_coordinator_reads_what_the_last_one_wrote(tmp_path: Path) -> None:
    history = History(tmp_path / "jobs")
    for record in (replace(DONE, job=12), replace(DONE, job=2), QUEUED, replace(RUNNING, job=4)):
        history.write(record)
    read = History(tmp_path / "jobs").read()
    assert [record.job for record in read] == [2, 3, 4, 12]
    assert read[0] == replace(DONE, job=2)
    assert [record.state for record in read] == ["done", "failed", "failed", "done"]
    assert read[1].error == "the coordinator ended while it was queued (submit it again)"
    assert dp.load(tmp_path / "jobs" / "job-000004.json") == read[2]
    assert oct((tmp_path / "jobs").stat().st_mode)[-3:] == "700"


def test_a_damaged_history_is_named(tmp_path: Path) -> None:
    History(tmp_path).write(DONE)
    (tmp_path / "job-000003.json").write_text("{")
    with pytest.raises(DocumentError, match=r"job-000003.json: not JSON.*move this record of an earlier job elsewhere"):
        History(tmp_path).read()


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (QUEUED, "job 3 (foreground, vgg16, 2 GPUs): queued"),
        (RUNNING, "@: training, update 7 of 500, loss 2.5000, 250 ms an update"),
        (DONE, "@: done, update 7 of 500, loss 2.5000, 250 ms an update"),
        (
            replace(RUNNING, state="failed", error="rank 1 hung"),
            "@: failed, rank 1 hung",
        ),
        (
            replace(RUNNING, steps=None, progress=JobProgress(7)),
            "@: starting, 7 updates",
        ),
        (
            replace(RUNNING, steps=None, gpus=(2,), gpu_count=1, progress=JobProgress(1)),
            "job 3 (foreground, vgg16, GPU 2): starting, 1 update",
        ),
    ],
)
def test_a_job_is_told_in_a_line(record: JobRecord, text: str) -> None:
    assert str(record) == text.replace("@", "job 3 (foreground, vgg16, GPUs 0,2)")


def test_a_status_shows_gpus_then_the_last_ten_ended_jobs_then_the_others() -> None:
    ended = [replace(DONE, job=number) for number in range(1, 15)]
    gpus = (GpuUse(0, "10.0.0.1", 15, None), GpuUse(1, "10.0.0.1", None, None))
    status = ClusterStatus("10.0.0.1:6379", "cpu", gpus, (replace(RUNNING, job=15), *ended))
    lines = str(status).splitlines()
    assert lines[:3] == [
        "2 GPUs (cpu) of the Ray at 10.0.0.1:6379",
        "GPU 0 of 10.0.0.1: foreground job 15",
        "GPU 1 of 10.0.0.1: free",
    ]
    assert [line.split()[1] for line in lines[3:]] == [*map(str, range(5, 15)), "15"]
    assert status.job(15).state == "running"


def test_without_ray_the_error_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RunError, match=r"a cluster needs Ray.*pip install 'deeppool\[cluster\]'"):
        dp.Coordinator.start()


def test_where_no_cluster_runs_the_error_says_how_to_start_one(state: Path) -> None:
    with pytest.raises(RunError, match=r"no cluster runs \(deeppool cluster start\)"):
        dp.Coordinator()
    # A number of a process that is used again, and an address where nobody listens any more.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        ray_connection.remember(Joined(address, None))
        assert ray_connection.running() == Joined(address, None)
    assert ray_connection.running() is None
    ray_connection.remember(Joined(address, os.getpid()))
    assert ray_connection.running() is None


@pytest.mark.skipif(sys.platform != "linux", reason="patches how psutil reads Linux's clock")
def test_a_cluster_is_found_again_when_the_clock_of_the_machine_was_set(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", ray_connection.HOST], stdin=subprocess.PIPE) as host:
        found = Joined("127.0.0.1:1", host.pid)
        ray_connection.remember(found)
        boot = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 60)
        assert ray_connection.running() == found
        host.communicate(b"\n", timeout=300)
    assert ray_connection.running() is None


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        ({"address": "nowhere"}, "address must be HOST:PORT, got 'nowhere'"),
        ({"gpus": 0}, "gpus must be at least 1, got 0"),
        ({"address": "127.0.0.1:1", "gpus": 2}, "gpus=2 is for a new Ray on this machine, there is one at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_started_is_refused(arguments, phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        dp.Coordinator.start(**arguments)


def test_an_address_where_nobody_listens_is_told_at_once() -> None:
    with pytest.raises(RunError, match=r"no Ray answers at 127.0.0.1:1: .*refused"):
        dp.Coordinator.start("127.0.0.1:1")


def test_looking_for_a_ray_leaves_the_environment_as_it_was() -> None:
    ray_connection.find_ray()  # Ray itself sets a variable when it is imported
    before = dict(os.environ)
    with ray_connection.ray_environment_set(on_loopback=True):
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert Path(os.environ["RAY_AUTH_TOKEN_PATH"]) == ray_connection.token_file()
        ray_connection.find_ray()
    with pytest.raises(RunError, match="no Ray answers"):
        ray_connection.join("127.0.0.1:1")
    assert dict(os.environ) == before


def test_a_ray_that_was_imported_before_takes_the_token_and_the_loopback_address_all_the_same(state: Path) -> None:
    raylet, services = pytest.importorskip("ray._raylet"), pytest.importorskip("ray._private.services")
    found = []
    for on_loopback in (False, True, False):
        with ray_connection.ray_environment_set(on_loopback=on_loopback):
            ray_connection.find_ray()
            found.append((raylet.get_authentication_mode(), services.resolve_ip_for_localhost("127.0.0.1")))
    (mode, public), (token, loopback), last = found
    assert (mode, token) == (raylet.AuthenticationMode.DISABLED, raylet.AuthenticationMode.TOKEN)
    assert loopback == "127.0.0.1"
    assert last == (mode, public)


def test_a_busy_machine_has_minutes_to_start_processes_of_ray() -> None:
    raylet = pytest.importorskip("ray._raylet")
    with ray_connection.ray_environment_set():
        ray_connection.find_ray()
        assert raylet.Config.worker_register_timeout_seconds() == ray_connection.SLOW_START_SECONDS


def test_the_token_is_this_users_and_stays(state: Path) -> None:
    path = ray_connection.token_file()
    text = path.read_text()
    assert len(text) == 64
    assert oct(path.stat().st_mode)[-3:] == "600"
    assert ray_connection.token_file().read_text() == text


class FailingRay(SimpleNamespace):
    """A Ray whose coordinator cannot read the history."""

    class RayTaskError(Exception):
        cause = DocumentError("job-000003.json: not JSON")

    def __init__(self) -> None:
        self.ended: list[str] = []
        context = SimpleNamespace(get_node_id=lambda: "this")
        head = SimpleNamespace(open=SimpleNamespace(remote=lambda folder: "opened"))
        super().__init__(
            exceptions=SimpleNamespace(RayTaskError=self.RayTaskError),
            cluster_resources=dict,
            get_runtime_context=lambda: context,
            remote=lambda actor: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda device: head)),
            kill=lambda actor: self.ended.append("coordinator"),
            shutdown=lambda: self.ended.append("connection"),
        )

    def get(self, asked: object, timeout: float | None) -> None:
        raise self.RayTaskError


def test_a_coordinator_that_cannot_read_its_history_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FailingRay()
    monkeypatch.setattr(client, "on_node", lambda node: None)
    monkeypatch.setattr(ray_connection, "join", lambda address: (ray, True))
    monkeypatch.setattr(ray_connection, "start_here", lambda gpus: Joined("127.0.0.1:1", None))
    monkeypatch.setattr(ray_connection, "leave", lambda joined: ray.ended.append(joined.address))
    with pytest.raises(DocumentError, match=r"job-000003.json: not JSON"):
        dp.Coordinator.start()
    assert ray.ended == ["coordinator", "connection", "127.0.0.1:1"]
