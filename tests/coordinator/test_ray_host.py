"""The process that runs Ray on this machine, with a Ray that does nothing."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

HOST = """
from types import SimpleNamespace
from deeppool.coordinator import ray_host
context = SimpleNamespace(gcs_address="127.0.0.1:1")
private = SimpleNamespace(services=SimpleNamespace(start_raylet=None))
ray = SimpleNamespace(
    init=lambda **_: None, shutdown=lambda: None, get_runtime_context=lambda: context, _private=private
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
