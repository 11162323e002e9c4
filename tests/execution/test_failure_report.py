"""Failure reports of a rank for real exceptions of torch, numpy and Python."""

import gc
import os
import queue
import re
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from deeppool.errors import DocumentError
from deeppool.execution.failure_report import RENDEZVOUS, describe_failure, report_failure
from deeppool.units import format_bytes

DOING = "forward of stage conv1 (update 3)"


def raised(action) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail_in_a_list() -> None:
    list(range(1))[1]


@pytest.mark.parametrize(
    ("action", "requested"),
    [
        (lambda: torch.empty(2**50, dtype=torch.uint8), f"{format_bytes(2**50)} more were asked for"),
        (lambda: np.empty(2**43, dtype=np.uint8), f"{format_bytes(2**43)} more were asked for"),
        (lambda: bytearray(2**62), "more was asked for"),
    ],
    ids=["torch", "numpy", "Python"],
)
def test_a_failed_allocation_reports_the_requested_and_the_available_memory(action, requested: str) -> None:
    reported = describe_failure(raised(action), DOING)
    assert reported["kind"] == "memory"
    assert reported["text"].startswith(f"ran out of memory in {DOING}: ")
    assert f"{requested}, it holds " in reported["text"]
    assert "the machine has " in reported["text"]
    assert "test_failure_report.py" in reported["text"]


def test_gpu_memory_errors_are_memory_failures() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of …")
    assert "20.0 MiB more were asked for" in describe_failure(error, DOING)["text"]


def test_an_allocation_that_fails_in_c_code_of_torch_is_a_memory_failure() -> None:
    # As torch raises it on a failed new: its size is not told.
    assert "more was asked for" in describe_failure(RuntimeError("std::bad_alloc"), DOING)["text"]


@pytest.mark.parametrize(
    ("error", "doing"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:5"), DOING),
        (RuntimeError("[enforce fail at gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1ms"), DOING),
        (dist.DistNetworkError("failed to connect"), DOING),
        (RuntimeError("Unable to find address for: eth7"), RENDEZVOUS),
    ],
)
def test_errors_of_a_lost_peer_are_connection_failures(error: BaseException, doing: str) -> None:
    reported = describe_failure(error, doing)
    assert reported["kind"] == "connection"
    assert (doing if doing is DOING else "could not reach the other ranks") in reported["text"]
    assert str(error).splitlines()[-1] in reported["text"]


def test_a_full_disk_on_which_the_ranks_meet_is_no_failure_of_the_network() -> None:
    error = dist.DistStoreError("No space left on device\nException raised from writeFull at FileStore.cpp:80")
    reported = describe_failure(error, RENDEZVOUS)
    assert reported["kind"] == "refusal"
    assert reported["text"] == (
        "cannot write the file in which the ranks meet: No space left on device (TMPDIR names another folder)"
    )


def test_a_deeppool_error_is_reported_unchanged() -> None:
    reported = describe_failure(DocumentError("cannot write x: disk full"), DOING)
    assert (reported["kind"], reported["text"]) == ("refusal", "cannot write x: disk full")


def test_an_error_of_user_code_is_reported_with_its_line() -> None:
    reported = describe_failure(raised(fail_in_a_list), DOING)
    assert reported["kind"] == "error"
    assert reported["text"].startswith(f"failed in {DOING}: IndexError: list index out of range, at ")
    assert reported["text"].endswith("in fail_in_a_list")
    assert "Traceback" in reported["traceback"]


def test_only_the_last_line_of_a_loader_traceback_is_reported() -> None:
    error = ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback:\n  x\nValueError: bad\n")
    assert describe_failure(error, DOING)["text"] == f"failed in {DOING}: ValueError: bad"


@pytest.fixture
def no_loader_is_left() -> Iterator[None]:
    """Ends the loader workers that an exception's traceback still holds."""
    yield
    gc.collect()


class ExitingDataset(Dataset):
    """Dataset that ends the process that reads it."""

    def __init__(self, by_signal: bool) -> None:
        self.by_signal = by_signal

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> int:
        if self.by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)


def chained_errors(*texts: str) -> BaseException:
    """Errors raised one from another, as torch raises them."""
    error: BaseException = queue.Empty()
    for text in texts:
        try:
            raise RuntimeError(text) from error
        except RuntimeError as next_one:
            error = next_one
    return error


EXITED_UNEXPECTEDLY = "DataLoader worker (pid(s) 71, 72) exited unexpectedly"
KILLED = "DataLoader worker (pid 71) is killed by signal: Killed. "
EXITED = "DataLoader worker (pid 71) exited unexpectedly with exit code 3. Details are lost due to multiprocessing."


@pytest.mark.parametrize(
    ("error", "exit_reason"),
    [
        (chained_errors(KILLED), "process 71 was killed by a signal (Killed)"),
        (chained_errors(EXITED), "process 71 ended with exit code 3"),
        (chained_errors(EXITED_UNEXPECTEDLY), "processes 71, 72 ended without an exit code"),
        (chained_errors(KILLED, EXITED_UNEXPECTEDLY), "process 71 was killed by a signal (Killed)"),
    ],
    ids=["signal", "exit code", "found gone", "found gone after a signal"],
)
def test_a_lost_loader_worker_is_reported_in_one_sentence_for_each_way_of_detecting_it(
    error: BaseException, exit_reason: str
) -> None:
    reported = describe_failure(error, DOING)
    assert reported["kind"] == "loader"
    assert reported["text"] == f"lost a process that loads its data in {DOING}: {exit_reason}"


class ZerosDataset(Dataset):
    """Dataset of zeros; its samples cannot be fetched from a worker process that is exiting."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> torch.Tensor:
        return torch.zeros(2)


@pytest.mark.slow
@pytest.mark.usefixtures("no_loader_is_left")
@pytest.mark.parametrize(
    "way",
    [ConnectionResetError(104, "Connection reset by peer"), pytest.param(EOFError(), marks=pytest.mark.stress)],
    ids=repr,
)
def test_a_loader_worker_that_exits_while_its_samples_are_fetched_counts_as_lost(
    way: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = iter(DataLoader(ZerosDataset(), num_workers=1))

    def get(timeout: float) -> None:
        raise type(way)(*way.args)  # what the parameter itself would hold for ever: its traceback, and so the loader

    with monkeypatch.context() as patch:
        patch.setattr(loader._data_queue, "get", get)
        reported = describe_failure(raised(lambda: next(loader)), DOING)
    assert reported["kind"] == "loader"
    assert reported["text"] == (
        f"lost a process that loads its data in {DOING}: it ended while it sent samples "
        f"({type(way).__name__}{f': {way}' if str(way) else ''})"
    )
    # One that the data raises is the data's.
    assert (
        describe_failure(raised(lambda: next(iter(DataLoader(RaisingDataset(way), num_workers=1)))), DOING)["kind"]
        == "error"
    )


class RaisingDataset(Dataset):
    """Dataset that raises a connection error of its own."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> torch.Tensor:
        raise self.error


class InterruptedLauncher:
    """Launcher channel whose first message is interrupted by the error of a lost loader worker."""

    def __init__(self, pending: str) -> None:
        self.pending: str | None = pending
        self.reported: list[dict] = []

    def answer(self, event: str, **content: object) -> None:
        if self.pending is not None:
            pending, self.pending = self.pending, None
            raise RuntimeError(pending)
        self.reported.append({"event": event, **content})


def test_a_loader_error_raised_while_the_failure_is_reported_is_included() -> None:
    launcher = InterruptedLauncher(KILLED)
    reported = report_failure(launcher, chained_errors(EXITED_UNEXPECTEDLY), DOING)  # type: ignore[arg-type]
    assert launcher.reported == [{"event": "failed", **reported}]
    assert reported["text"].endswith(": process 71 was killed by a signal (Killed)")


@pytest.mark.stress
@pytest.mark.usefixtures("no_loader_is_left")
@pytest.mark.parametrize("by_signal", [True, False])
def test_torch_error_messages_about_lost_loader_workers_are_unchanged(by_signal: bool) -> None:
    reported = describe_failure(raised(lambda: next(iter(DataLoader(ExitingDataset(by_signal), num_workers=1)))), DOING)
    assert reported["kind"] == "loader"
    known = r"was killed by a signal \(Killed\)" if by_signal else "ended with exit code 3"
    assert re.search(rf"process \d+ ({known}|ended without an exit code)$", reported["text"])
