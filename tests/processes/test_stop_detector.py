"""A process counts as stopped after a number of checks, which are not made while the launcher is stopped."""

import signal
import subprocess
from collections.abc import Iterator

import pytest

from deeppool.processes.stop_detector import STOPPED_SECONDS, StopDetector, is_stopped


@pytest.fixture
def stopped() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["sleep", "600"]) as process:
        process.send_signal(signal.SIGSTOP)
        while not is_stopped(process.pid):
            pass
        yield process
        process.kill()


def test_a_process_is_reported_after_consecutive_checks_in_which_it_was_stopped(
    stopped: "subprocess.Popen[bytes]",
) -> None:
    detector, checks = StopDetector(), int(STOPPED_SECONDS)
    assert [detector.check([stopped.pid]) for _ in range(checks)] == [[]] * (checks - 1) + [[stopped.pid]]


def test_a_process_that_was_continued_counts_from_the_start_again(stopped: "subprocess.Popen[bytes]") -> None:
    detector, checks = StopDetector(), int(STOPPED_SECONDS)
    for _ in range(checks - 1):
        assert detector.check([stopped.pid]) == []
    stopped.send_signal(signal.SIGCONT)
    while is_stopped(stopped.pid):
        pass
    assert detector.check([stopped.pid]) == []
    stopped.send_signal(signal.SIGSTOP)
    while not is_stopped(stopped.pid):
        pass
    assert detector.check([stopped.pid]) == []


def test_a_process_that_has_ended_is_not_stopped(stopped: "subprocess.Popen[bytes]") -> None:
    stopped.kill()
    stopped.wait()
    assert not is_stopped(stopped.pid)
