"""The rank that ended first is reported, in whatever order messages and ends of several ranks arrive."""

import itertools
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from deeppool.errors import RankFailedError
from deeppool.processes.rank_group import RankGroup, private_folder, report_start
from tests.waiting import wait_until

LOST = {
    "event": "failed",
    "kind": "connection",
    "doing": "forward of stage x",
    "text": "lost its connection to another rank",
    "traceback": "",
}


class Ended:
    """A rank that has ended before its first message is read."""

    def __init__(self, name: str, inbox: queue.SimpleQueue, code: int) -> None:
        self.name, self.inbox, self.code = name, inbox, code

    def exit_code(self) -> int:
        return self.code

    def exit_reason(self) -> str:
        return f"ended with exit code {self.code}"

    def send(self, command: str, **arguments: Any) -> None: ...

    def kill(self) -> None: ...

    def close(self, grace: float = 2.0) -> None: ...


class EndedLauncher:
    """Launcher whose ranks have all ended with an exit code."""

    def __init__(self, *codes: int) -> None:
        self.codes = codes

    def start(self, rank: int, module: str, name: str, inbox: queue.SimpleQueue) -> Ended:
        return Ended(name, inbox, self.codes[rank])


# The end of a rank comes after its messages.
ORDERS = [x for x in itertools.permutations(["lost", "end 0", "end 1"]) if x.index("lost") < x.index("end 0")]


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_a_rank_that_exits_silently_is_the_root_cause_though_its_peer_was_aborted(order: tuple[str, ...]) -> None:
    with RankGroup(EndedLauncher(-6, 0)) as group:  # type: ignore[arg-type]
        victim, leaver = group.start("any"), group.start("any")
        received = {"lost": (victim, LOST), "end 0": (victim, None), "end 1": (leaver, None)}
        for what in order:
            victim.inbox.put(received[what])
        with pytest.raises(
            RankFailedError, match=r"^rank 1 ended with exit code 0 while .*, missed by rank 0 in forward"
        ):
            group.collect("done", 60.0, "while they trained")


def test_a_start_reports_each_change_of_what_it_waits_for() -> None:
    reported: list[tuple[str, float]] = []
    with RankGroup(EndedLauncher(0, 0)) as group:  # type: ignore[arg-type]
        first, second = group.start("any"), group.start("any")
        meeting = {"event": "heartbeat", "what": "meeting the other ranks", "since": 1.0, "waits": True}
        for rank, message in (
            (first, meeting),
            (first, meeting),
            (second, {"event": "ready"}),
            (first, {"event": "ready"}),
        ):
            first.inbox.put((rank, message))
        wait = report_start(lambda what, done: reported.append((what, done)), 0.25)
        group.collect("ready", 60.0, "while they started", on_wait=wait)
    assert reported == [
        ("starting: waiting for rank 1 (its start)", 0.25),
        ("starting: waiting for rank 0 (meeting the other ranks)", 0.25),
    ]


@pytest.mark.processes
def test_a_stopped_watchdog_does_not_keep_a_run_from_ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def run() -> None:
        before = set(psutil.Process().children())
        with private_folder() as folder:
            (watchdog,) = set(psutil.Process().children()) - before
            watchdog.suspend()
            assert folder.is_dir()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert list(tmp_path.iterdir()) == []


RUN = """
import psutil, sys
from deeppool.processes.rank_group import private_folder
with private_folder() as folder:
    (watchdog,) = psutil.Process().children()
    watchdog.suspend()
    # The kernel continues what has stopped before its launcher ends, and a signal takes its time on a busy machine.
    while watchdog.status() != psutil.STATUS_STOPPED:
        pass
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.processes
def test_a_stopped_watchdog_removes_the_folder_of_a_killed_launcher(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as launcher:
        assert launcher.stdout is not None
        folder = Path(launcher.stdout.readline().strip())
        assert folder.is_dir()
        launcher.kill()
    wait_until(lambda: not folder.exists(), 300, "the end of the folder")
