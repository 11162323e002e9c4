"""Sockets through which processes of :mod:`multiprocessing`, such as the workers of a loader, send tensors.

They lie in a folder of ``TMPDIR``. Where that is so long that the address of a socket does not fit, a worker cannot
send, and the process that waits for its first batch would wait forever.
"""

import multiprocessing.util
import os
import tempfile
from pathlib import Path

from deeppool.errors import RunError

SOCKET_NAME = len("/pymp-12345678/listener-12345678")
"""Characters that multiprocessing adds to the folder of temporary files."""
LONGEST_FOLDER = 103 - SOCKET_NAME
"""Bytes of the path of a folder for sockets; a socket's may have 107 on Linux, and 103 on other systems."""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")


def place_sockets_in(folder: Path) -> None:
    """Lets this process have its sockets in the run's folder, if they fit, so that they are removed with it."""
    if len(os.fsencode(folder)) <= LONGEST_FOLDER:
        tempfile.tempdir = str(folder)


def keep_sockets_short() -> None:
    """Lets this process, and those that it starts, have their sockets elsewhere where ``TMPDIR`` is too long for them.

    Raises:
        RunError: it is, and no other folder for temporary files can be written.
    """
    configured = tempfile.gettempdir()
    if len(os.fsencode(configured)) <= LONGEST_FOLDER:
        return
    short = next((folder for folder in SHORT_FOLDERS if os.access(folder, os.W_OK | os.X_OK)), None)
    if short is None:
        raise RunError(
            f"TMPDIR has {len(os.fsencode(configured))} bytes, too many for the sockets of loader workers "
            f"(set TMPDIR to a path of at most {LONGEST_FOLDER} bytes, or loader_workers to 0)"
        )
    # multiprocessing creates the folder on its first use, and the processes that it starts inherit it.
    tempfile.tempdir = short
    try:
        multiprocessing.util.get_temp_dir()
    finally:
        tempfile.tempdir = configured
