"""Process that starts Ray on this machine and runs it until SIGTERM; Ray's processes end with it.

``python -m deeppool.coordinator.ray_host CORES FOLDER``; the folder is removed at the end. It writes one line to
standard output: Ray's address, as JSON. Its environment has what :func:`ray_environment` returns.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading

from deeppool.coordinator.ray_connection import LOOPBACK, find_ray
from deeppool.processes.rank_group import CLEANUP_WATCHDOG

OBJECT_STORE_BYTES = 256 * 2**20
"""Size of the object store: for models on their way to the ranks; larger objects go through a file."""


def main() -> None:
    """Starts Ray, and waits for SIGTERM."""
    ray = find_ray()
    over = threading.Event()
    cores, folder = sys.argv[1:]
    os.environ["TMPDIR"] = folder
    # Removed even if Ray, or a signal, ends this process: the shell then reads the end of its input.
    with subprocess.Popen(
        ["/bin/sh", "-c", CLEANUP_WATCHDOG, folder, folder, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        process_group=0,
    ):
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
