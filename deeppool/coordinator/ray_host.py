"""Process that starts Ray on this machine and runs it until SIGTERM; Ray's processes end with it.

``python -m deeppool.coordinator.ray_host CORES FOLDER``; the folder is removed at the end. It writes one line to
standard output: Ray's address, as JSON. Its environment has what :func:`ray_environment` returns.
"""

import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from deeppool.coordinator.ray_connection import LOOPBACK, find_ray
from deeppool.processes.cleanup_watchdog import cleanup_watchdog

OBJECT_STORE_BYTES = 256 * 2**20
"""Size of the object store: for models on their way to the ranks; larger objects go through a file."""


def main() -> None:
    """Starts Ray, and waits for SIGTERM."""
    ray = find_ray()
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
        over.wait()
        ray.shutdown()


if __name__ == "__main__":
    main()
