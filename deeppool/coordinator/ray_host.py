"""Process that starts Ray on this machine and runs it until SIGTERM, or the end of Ray's node; all end with it.

``python -m deeppool.coordinator.ray_host CORES FOLDER``; the folder is removed at the end. It writes one line to
standard output: Ray's address, as JSON. Its environment has what :func:`ray_environment` returns.
"""

import contextlib
import inspect
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deeppool.coordinator.ray_connection import LOOPBACK, find_ray
from deeppool.processes.cleanup_watchdog import cleanup_watchdog
from deeppool.processes.end_of_processes import has_ended

OBJECT_STORE_BYTES = 256 * 2**20
"""Size of the object store: for models on their way to the ranks; larger objects go through a file."""
LOOK_SECONDS = 1.0
"""Seconds between two looks whether the node's process has ended."""
LISTENS = "dashboard_agent_listen_port"
AGENT_PORTS = ("metrics_agent_port", "metrics_export_port", LISTENS, "runtime_env_agent_port")
"""Ports of a node's agents, as Ray's parameters name them."""


def with_agent_ports(ray: Any) -> Callable[..., Any]:
    """Returns Ray's function that starts a node's process, for nodes whose agents get free ports.

    A node whose agents choose their own waits for them to report which, and aborts after 15 seconds, in which a busy
    machine does not start them. For one of them it waits in any case, so this is reported here. Another
    version of Ray, which may have neither these parameters nor that report, keeps its function.
    """
    start_raylet: Callable[..., Any] = ray._private.services.start_raylet
    persist_port = getattr(ray._raylet, "persist_port", None)
    known = {"session_dir", "node_id", *AGENT_PORTS} <= inspect.signature(start_raylet).parameters.keys()
    if persist_port is None or not known:
        return start_raylet

    def start(*arguments: Any, **named: Any) -> Any:
        node = inspect.signature(start_raylet).bind(*arguments, **named)
        with contextlib.ExitStack() as stack:
            free = [stack.enter_context(socket.create_server((LOOPBACK, 0))) for _ in AGENT_PORTS]
            node.arguments |= {name: each.getsockname()[1] for name, each in zip(AGENT_PORTS, free, strict=True)}
        where = node.arguments["session_dir"], node.arguments["node_id"]
        persist_port(*where, LISTENS, node.arguments[LISTENS])
        return start_raylet(*node.args, **node.kwargs)

    return start


def wait_for_end(over: threading.Event) -> None:
    """Waits for the event, or the end of the node's process, without which Ray answers no command but stays."""
    import psutil

    node = next((child for child in psutil.Process().children() if child.name() == "raylet"), None)
    while not over.wait(LOOK_SECONDS):
        if node is not None and has_ended(node):
            return


def main() -> None:
    """Starts Ray, and waits for SIGTERM or the end of its node."""
    ray = find_ray()
    ray._private.services.start_raylet = with_agent_ports(ray)
    over = threading.Event()
    cores, folder = sys.argv[1:]
    os.environ["TMPDIR"] = folder
    # Removed even if Ray, or a signal, ends this process.
    with cleanup_watchdog(Path(folder)):
        ray.init(
            num_cpus=int(cores),
            _node_ip_address=LOOPBACK,
            _temp_dir=f"{folder}/ray",
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: over.set())
        os.write(1, (json.dumps({"address": ray.get_runtime_context().gcs_address}) + "\n").encode())
        wait_for_end(over)
        ray.shutdown()


if __name__ == "__main__":
    main()
