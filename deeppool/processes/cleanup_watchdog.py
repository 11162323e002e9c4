"""Removal of folders and control groups, even if the process that made them is killed."""

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

CLEANUP_SECONDS = 10.0
"""Time limit for the watchdog at the end; it tries for half of it."""
CLEANUP_WATCHDOG = """trap '' HUP
read -r _
for _ in 1 2 3 4 5; do
  left=
  rm -rf -- "$@" || left=some
  for group in "$0"-*; do
    [ ! -d "$group" ] || rmdir -- "$group" || left=some
  done
  [ "$left" ] || exit
  sleep 1
done
"""
"""Shell script that waits for the end of its parent, then removes folders and control groups.

Should it be stopped when its parent ends, the kernel sends it SIGHUP, which it ignores, and continues it."""


@contextlib.contextmanager
def cleanup_watchdog(*folders: Path, groups: Path | None = None) -> Iterator[None]:
    """Removes what is named here at the end of the ``with`` block, or of this process.

    Args:
        folders: at least one.
        groups: what the paths of control groups begin with, up to a hyphen; None: the first folder.
    """
    # Removed even if this process is killed: the shell then reads the end of its input.
    with subprocess.Popen(
        ["/bin/sh", "-c", CLEANUP_WATCHDOG, str(groups or folders[0]), *map(str, folders)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as watchdog:
        try:
            yield
        finally:
            _end(watchdog)


def _end(watchdog: "subprocess.Popen[bytes]") -> None:
    """Waits for what the watchdog still removes; a signal may have stopped it."""
    watchdog.send_signal(signal.SIGCONT)
    assert watchdog.stdin is not None
    # Forks of this process, as of a loader beside the run, may hold the other end open: it reads a line, or the end.
    with contextlib.suppress(BrokenPipeError):
        watchdog.stdin.write(b"\n")
        watchdog.stdin.close()
    try:
        watchdog.wait(CLEANUP_SECONDS)
    except subprocess.TimeoutExpired:
        watchdog.kill()
