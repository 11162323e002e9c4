"""Module that takes forks from the fork server that imports it, as a system does that has no process left."""

import errno
import os


def fork() -> int:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


os.fork = fork
