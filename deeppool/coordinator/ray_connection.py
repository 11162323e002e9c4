"""Connection to Ray: imports it on demand, starts it on this machine, or joins it by its address.

A Ray of this machine listens on the loopback interface, accepts only clients with this user's token, and has no
dashboard. Usage reports are disabled.
"""

import importlib
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from deeppool.base import serialization
from deeppool.base.number_checks import whole_number
from deeppool.base.private_files import check_private, make_private_folder, private
from deeppool.device.cpu import usable_cores
from deeppool.errors import InvalidValueError, RunError
from deeppool.processes.end_of_processes import wait_until_ended

HOST = "deeppool.coordinator.ray_host"
"""Module of the process that runs a Ray of this machine."""
LOOPBACK = "127.0.0.1"
START_SECONDS = 300.0
"""Time limit in seconds for the start of Ray: some seconds of a processor, of which a busy machine gives it few."""
SLOW_START_SECONDS = 240
"""The same, for each of its processes."""
STOP_SECONDS = 30.0
PROBE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Joined:
    """Ray instance that this user's commands connect to, stored in a file."""

    KIND: ClassVar[str] = "joined-ray"

    address: str
    pid: int | None
    """Process id of the Ray host, or None for a Ray that was started otherwise."""


def state_folder() -> Path:
    """Returns the folder for state that outlives a command, by the XDG base directory specification."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "deeppool" / "cluster"


def ray_environment(*, on_loopback: bool = False) -> dict[str, str]:
    """Returns variables for Ray's processes, and for a process while it connects to Ray.

    Args:
        on_loopback: for a Ray on this machine alone.
    """
    found = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray hides the GPUs from actors that requested none; it warns that this will change, so the current behaviour
        # is set.
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
        # Ray's nodes would start actors at nice 15: on a busy machine the coordinator, and all that it starts, would
        # get a hundredth of a core, and answer after a minute.
        "RAY_worker_niceness": "0",
        # Ray gives up a node, its agents and an actor's process that take longer to start: 30, 30 and 60 seconds.
        "RAY_raylet_start_wait_time_s": str(SLOW_START_SECONDS),
        "RAY_agent_register_timeout_ms": str(1000 * SLOW_START_SECONDS),
        "RAY_worker_register_timeout_seconds": str(SLOW_START_SECONDS),
    }
    if not on_loopback:
        return found
    return found | {
        # Ray would take the loopback address for the machine's public one, and listen on every interface. On macOS and
        # Windows it does not, and this variable selects between the two on any system.
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
    """Imports and returns the module ``ray``, with settings from the variables of the environment as they are now.

    Raises:
        RunError: it is not installed.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise RunError(f"a cluster needs Ray: {error} (pip install 'deeppool[cluster]')") from None
    if not ray.is_initialized():
        _read_variables_again()
    return ray


def _read_variables_again() -> None:
    # Ray reads them once, on import, and whoever imported it before had not set them.
    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    constants: Any = importlib.import_module("ray._private.ray_constants")
    by_default = not constants.IS_WINDOWS_OR_OSX
    constants.ENABLE_RAY_CLUSTER = constants.env_bool(constants.ENABLE_RAY_CLUSTERS_ENV_VAR, by_default)


def token_file() -> Path:
    """Returns the file of the token that authenticates this user's clients to Ray; creates it if there is none.

    Raises:
        RunError: the file, or its folder, is another user's or open to others: whoever has the token runs code here.
    """
    path = state_folder() / "token"
    make_private_folder(path.parent)
    if not os.path.lexists(path):
        # Linked under its name when it is whole: of two commands at once, both read the same token.
        whole = path.with_name(f".token-{secrets.token_hex(8)}")
        with open(whole, "x", encoding="utf-8", opener=private) as stream:
            stream.write(secrets.token_hex(32))
        with suppress(FileExistsError):
            os.link(whole, path)
        whole.unlink()
    check_private(path.parent, writable_only=True)
    check_private(path)
    return path


def running() -> Joined | None:
    """Returns the Ray that was started or joined last, or None if it has ended."""
    import psutil

    path = _file()
    if not path.is_file():
        return None
    found = serialization.read(path, Joined)
    try:
        if found.pid is None:
            _probe(found.address)
        # Ids are reused. When a process started would tell it too, but moves with the clock of the machine.
        elif HOST not in psutil.Process(found.pid).cmdline():
            return None
    except (RunError, psutil.Error):
        return None
    return found


def start_here(cores: int | None) -> Joined:
    """Starts a Ray on this machine, in a process that outlives this one.

    Args:
        cores: number to offer, beside the GPUs that Ray finds; by default all that this process may use.

    Raises:
        RunError: it does not start.
    """
    if cores is not None:
        cores = whole_number("gpus", cores)
    with ray_environment_set(on_loopback=True):
        find_ray()
    log = state_folder() / "ray.log"
    # Ray's logs and sockets, and files of killed processes: private, and removed with Ray.
    folder = tempfile.mkdtemp(prefix="deeppool-ray-")
    with log.open("w", encoding="utf-8") as errors:
        host = subprocess.Popen(
            [sys.executable, "-m", HOST, str(cores or len(usable_cores())), folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | ray_environment(on_loopback=True),
            # It must not end with the terminal.
            start_new_session=True,
        )
    assert host.stdout is not None
    late = threading.Timer(START_SECONDS, host.kill)
    late.start()
    try:
        answer = host.stdout.readline()
    except BaseException:
        host.kill()
        _remove_all_of(folder)
        raise
    finally:
        late.cancel()
        host.stdout.close()
    if not answer:
        host.wait()
        _remove_all_of(folder)
        said = [line for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
        raise RunError(f"Ray does not start: {said[-1] if said else 'no output'} (its output is in {log})")
    joined = Joined(json.loads(answer)["address"], host.pid)
    remember(joined)
    # This process does not wait for it: it continues when this one has ended.
    host.returncode = 0
    return joined


def _remove_all_of(folder: str) -> None:
    """Ends what is left of a Ray whose host has ended, by the folder in its arguments, and removes the folder."""
    import psutil

    def killed(process: psutil.Process) -> bool:
        # Another user's, which names the folder, may not be killed; nor is it Ray's.
        with suppress(psutil.Error):
            if any(folder in word for word in process.cmdline()):
                process.kill()
                return True
        return False

    stuck: set[psutil.Process] = set()
    # One may start another one meanwhile.
    while left := [process for process in psutil.process_iter() if process not in stuck and killed(process)]:
        stuck.update(wait_until_ended(left, PROBE_SECONDS))
    shutil.rmtree(folder, ignore_errors=True)


def remember(joined: Joined) -> None:
    """Stores the Ray for later commands."""
    make_private_folder(state_folder())
    serialization.write(joined, _file())


def join(address: str) -> tuple[Any, bool]:
    """Connects this process to a Ray.

    Returns:
        The module ``ray``, and whether this call connected the process: only then may the caller disconnect it.

    Raises:
        RunError: none answers there, or it rejects this machine, or the process is connected elsewhere.
    """
    with ray_environment_set(on_loopback=_probe(address) == LOOPBACK):
        ray = find_ray()
        if ray.is_initialized():
            other = ray.get_runtime_context().gcs_address
            if other != address:
                raise RunError(
                    f"this process is connected to the Ray at {other}, not {address} (ray.shutdown() leaves it)"
                )
            return ray, False
        return _connected(ray, address), True


def _connected(ray: Any, address: str) -> Any:
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise RunError(f"cannot join the Ray at {address}: {reason} (is this machine one of its nodes?)") from error
    return ray


def answers(address: str) -> bool:
    """Whether a Ray accepts connections."""
    with suppress(RunError):
        return bool(_probe(address))
    return False


def _probe(address: str) -> str:
    """Checks that the address accepts connections, and returns its host. Ray itself would retry for a long time."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidValueError(f"address must be HOST:PORT, got '{address}' (ray start --head prints it)")
    try:
        socket.create_connection((host, int(port)), timeout=PROBE_SECONDS).close()
    except OSError as error:
        raise RunError(f"no Ray answers at {address}: {error} (is it the address that ray start printed?)") from None
    return host


def remove_ended() -> None:
    """Ends what is left of a Ray of this machine that accepts no connections any more.

    Raises:
        RunError: there was one; its jobs have ended with it.
    """
    joined = running()
    if joined is not None and not answers(joined.address):
        leave(joined)
        raise RunError(f"the Ray at {joined.address} had ended, and its jobs with it; what was left of it was removed")


def leave(joined: Joined) -> None:
    """Ends a Ray that was started here with all its processes; only removes the stored address of another one."""
    import psutil

    if joined.pid is not None:
        # It, or one of its processes, may end by itself.
        with suppress(psutil.NoSuchProcess):
            host = psutil.Process(joined.pid)
            family, words = [host, *host.children(recursive=True)], host.cmdline()
            host.terminate()
            left = wait_until_ended(family, STOP_SECONDS)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            if left and HOST in words:
                # What would have removed its folder was killed, too.
                _remove_all_of(words[-1])
    _file().unlink(missing_ok=True)


def _file() -> Path:
    return state_folder() / "ray.json"
