"""The process that runs Ray on this machine, with a Ray that does nothing."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from deeppool.coordinator.ray_host import LISTENS, with_agent_ports

HOST = """
from types import SimpleNamespace
from deeppool.coordinator import ray_host
context = SimpleNamespace(gcs_address="127.0.0.1:1")
private = SimpleNamespace(services=SimpleNamespace(start_raylet=lambda: None))
ray = SimpleNamespace(
    init=lambda **_: None, shutdown=lambda: None, get_runtime_context=lambda: context, _private=private, _raylet=None
)
ray_host.find_ray = lambda: ray
ray_host.main()
"""


@pytest.mark.processes
def test_a_stopped_watchdog_removes_the_folder_when_ray_ends(tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOST, "1", str(folder)], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert json.loads(host.stdout.readline()) == {"address": "127.0.0.1:1"}
        (watchdog,) = psutil.Process(host.pid).children()
        watchdog.suspend()
        host.send_signal(signal.SIGTERM)
        try:
            assert host.wait(300) == 0
        finally:
            watchdog.resume() if watchdog.is_running() else None
            host.kill()
    assert not folder.exists()


@pytest.mark.processes
def test_it_ends_when_the_process_of_its_node_has(tmp_path: Path) -> None:
    node = tmp_path / "raylet"
    node.symlink_to(shutil.which("sleep"))
    folder = tmp_path / "ray"
    folder.mkdir()
    starting = HOST.replace("init=lambda **_: None", f"init=lambda **_: subprocess.Popen(['{node}', '600'])")
    program = "import subprocess" + starting.replace("ray_host.main()", "ray_host.LOOK_SECONDS = 0.01\nray_host.main()")
    with subprocess.Popen([sys.executable, "-c", program, "1", str(folder)], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        host.stdout.readline()
        (started,) = (child for child in psutil.Process(host.pid).children() if child.name() == "raylet")
        try:
            assert host.poll() is None
            started.kill()
            assert host.wait(300) == 0
        finally:
            started.kill()
            host.kill()
    assert not folder.exists()


def test_agents_get_free_ports_and_the_one_that_a_node_waits_for_is_reported_before_it_starts() -> None:
    told: list[tuple[object, ...]] = []

    def start_raylet(
        node_id: str,
        session_dir: str,
        metrics_agent_port: int | None = None,
        metrics_export_port: int | None = None,
        dashboard_agent_listen_port: int | None = None,
        runtime_env_agent_port: int | None = None,
    ) -> None:
        told.append((metrics_agent_port, metrics_export_port, runtime_env_agent_port, dashboard_agent_listen_port))

    ray = SimpleNamespace(
        _private=SimpleNamespace(services=SimpleNamespace(start_raylet=start_raylet)),
        _raylet=SimpleNamespace(persist_port=lambda *arguments: told.append(arguments)),
    )
    with_agent_ports(ray)("the node", "the session", metrics_agent_port=0)
    reported, ports = told
    assert reported == ("the session", "the node", LISTENS, ports[-1])
    assert len(set(ports)) == 4
    assert all(isinstance(port, int) and port > 0 for port in ports)


@pytest.mark.parametrize("reports", [True, False])
def test_another_version_of_ray_starts_its_nodes_itself(reports: bool) -> None:
    def start_raylet(node_id: str, session_dir: str, **ports: int) -> None:
        raise AssertionError

    def start_with_ports(
        node_id: str,
        session_dir: str,
        metrics_agent_port: int,
        metrics_export_port: int,
        dashboard_agent_listen_port: int,
        runtime_env_agent_port: int,
    ) -> None:
        raise AssertionError

    start = start_raylet if reports else start_with_ports
    raylet = SimpleNamespace(persist_port=print) if reports else SimpleNamespace()
    ray = SimpleNamespace(_private=SimpleNamespace(services=SimpleNamespace(start_raylet=start)), _raylet=raylet)
    assert with_agent_ports(ray) is start
