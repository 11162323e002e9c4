"""A Ray of this machine, from the shell: who can reach it, and what is left of it."""

import importlib.util
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes.children import gone

pytestmark = [
    pytest.mark.ray,
    pytest.mark.stress,
    pytest.mark.processes,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
CHECKOUT = Path(__file__).parents[2]

Shell = Callable[..., dict[str, Any]]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs ``deeppool cluster`` with a state of its own; whatever happened, Ray is stopped in the end."""
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}

    def run(*arguments: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "deeppool.cli", "cluster", *arguments, "--json"]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=300, check=True
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    yield run
    if (tmp_path / "deeppool" / "cluster" / "ray.json").exists():
        run("stop")


def test_a_ray_of_this_machine_is_reached_from_it_alone_and_leaves_nothing(shell: Shell, tmp_path: Path) -> None:
    assert [use["machine"] for use in shell("start", "--gpus", "1")["gpus"]] == ["127.0.0.1"]
    job = shell("submit", "--background", "examples.two_branch:two_branch")
    assert job["state"] == "running"
    state = tmp_path / "deeppool" / "cluster"
    host = psutil.Process(json.loads((state / "ray.json").read_text())["pid"])
    family = [host, *host.children(recursive=True)]
    (folder,) = {
        Path(word[: word.index("/ray/session_")].partition("=")[2])
        for process in family
        for word in process.cmdline()
        if word.startswith("--log_dir=")
    }
    assert folder.name.startswith("deeppool-ray-")
    # For ports that agents choose a node waits 15 s at most.
    (raylet,) = (process.cmdline() for process in family if process.cmdline()[0].endswith("/raylet"))
    options = dict(word.split("=", 1) for word in raylet if "=" in word)
    ports = [int(options[f"--{name}"]) for name in ("metrics-agent-port", "runtime_env_agent_port")]
    assert min(ports) > 0
    assert oct(folder.stat().st_mode)[-3:] == "700"
    listening = {
        ipaddress.ip_address(connection.laddr.ip.removeprefix("::ffff:"))
        for process in family
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening
    assert all(address.is_loopback for address in listening)
    last = shell("stop")
    assert [job["state"] for job in last["jobs"]] == ["cancelled"]
    assert not [process for process in family if not gone(process)]
    assert not folder.exists()
    assert not (state / "ray.json").exists()
    assert (state / "jobs" / "job-000001.json").is_file()
