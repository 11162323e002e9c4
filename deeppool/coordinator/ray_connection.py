"""Ray: imported where it is needed, started on this machine, joined by its address.

A Ray of this machine listens on the loopback interface, obeys only who can read this user's token, and has no
dashboard. None tells anybody that it is used.
"""

import importlib
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from deeppool.base import serialization
from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError, RunError

LOOPBACK = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 30.0
PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Joined:
    """The Ray that this user's commands talk to, in a file that they all read."""

    KIND: ClassVar[str] = "joined-ray"

    address: str
    pid: int | None
    """Of the process that holds it; None: somebody else's Ray."""
    created: float | None
    """Seconds since the epoch at which that process began: numbers of processes are used again."""


def state_folder() -> Path:
    """Where what outlives a command is kept, as the XDG base directory specification has it."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "deeppool" / "cluster"


def ray_environment(*, on_loopback: bool = False) -> dict[str, str]:
    """Variables for Ray's processes, and for a process while it connects to Ray.

    Args:
        on_loopback: for a Ray that this machine has to itself.
    """
    # Ray hides the GPUs from actors that asked for none; it warns that this will change, and we mean what it does.
    found = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1"}
    if not on_loopback:
        return found
    return found | {
        # Ray would take the loopback address for the machine's public one, and listen on every interface. On macOS
        # and Windows it does not, and this is the switch between the two, whatever the system.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file()),
    }


@contextmanager
def ray_environment_set(*, on_loopback: bool = False) -> Iterator[None]:
    """Sets these variables in the block, for Ray to read on import and connection, and restores them afterwards."""
    variables = ray_environment(on_loopback=on_loopback)
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def find_ray() -> Any:
    """Imports and returns the module ``ray``.

    Raises:
        RunError: it is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise RunError(f"a cluster needs Ray: {error} (pip install 'deeppool[cluster]')") from None


def token_file() -> Path:
    """The file that opens this user's Rays to this user."""
    path = state_folder() / "token"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32), encoding="utf-8")
    return path


def running() -> Joined | None:
    """What was started or joined last, if it still runs."""
    import psutil

    path = _file()
    if not path.is_file():
        return None
    found = serialization.read(path, Joined)
    try:
        if found.pid is None:
            _probe(found.address)
        elif psutil.Process(found.pid).create_time() != found.created:
            return None
    except (RunError, psutil.NoSuchProcess):
        return None
    return found


def start_here(cores: int | None) -> Joined:
    """Starts a Ray on this machine, in a process that outlives this one.

    Args:
        cores: to offer, beside the GPUs that Ray finds; all that this process may use unless given.

    Raises:
        RunError: it does not start.
    """
    import psutil

    if cores is not None and cores < 1:
        raise InvalidValueError(f"gpus must be at least 1, got {cores}")
    with ray_environment_set(on_loopback=True):
        find_ray()
    log = state_folder() / "ray.log"
    with log.open("w", encoding="utf-8") as errors:
        host = subprocess.Popen(
            [sys.executable, "-m", "deeppool.coordinator.ray_host", str(cores or len(usable_cores()))],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | ray_environment(on_loopback=True),
            # It shall not end with the terminal.
            start_new_session=True,
        )
    assert host.stdout is not None
    late = threading.Timer(START_SECONDS, host.kill)
    late.start()
    try:
        told = host.stdout.readline()
    except BaseException:
        host.kill()
        raise
    finally:
        late.cancel()
        host.stdout.close()
    if not told:
        host.wait()
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        raise RunError(f"Ray does not start: {said[-1] if said else 'it said nothing'} (its words are in {log})")
    joined = Joined(json.loads(told)["address"], host.pid, psutil.Process(host.pid).create_time())
    remember(joined)
    # The process is not this one's to wait for: it goes on when this one has ended.
    host.returncode = 0
    return joined


def remember(joined: Joined) -> None:
    """For the commands that follow."""
    state_folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    serialization.write(joined, _file())


def join(address: str) -> tuple[Any, bool]:
    """Connects this process to a Ray.

    Returns:
        The module ``ray``, and whether the process was not connected before: who connects it may disconnect it.

    Raises:
        RunError: none answers there, or it does not take this machine in, or the process is connected elsewhere.
    """
    with ray_environment_set(on_loopback=_probe(address) == LOOPBACK):
        ray = find_ray()
        if ray.is_initialized():
            other = ray.get_runtime_context().gcs_address
            if other != address:
                raise RunError(f"this process has joined the Ray at {other}, not {address} (ray.shutdown() leaves it)")
            return ray, False
        return _connected(ray, address), True


def _connected(ray: Any, address: str) -> Any:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"cannot join the Ray at {address}: {reason} (is this machine one of its nodes?)") from error
    return ray


def _probe(address: str) -> str:
    """Something listens there; returns the host. Ray itself would try for a long time."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidValueError(f"address must be HOST:PORT, got '{address}' (ray start --head prints it)")
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise RunError(f"no Ray answers at {address}: {error} (is it the address that ray start printed?)") from None
    return host


def leave(joined: Joined) -> None:
    """Ends a Ray that was started here, and all its processes; of another one forgets where it is."""
    import psutil

    if joined.pid is not None:
        try:
            host = psutil.Process(joined.pid)
            family = [host, *host.children(recursive=True)]
            host.terminate()
            for process in psutil.wait_procs(family, timeout=STOP_SECONDS)[1]:
                process.kill()
        except psutil.NoSuchProcess:
            pass  # it has ended by itself
    _file().unlink(missing_ok=True)


def _file() -> Path:
    return state_folder() / "ray.json"
