"""What a rank tells of an exception: the real exceptions of torch, numpy and Python."""

import os
import queue
import re
import signal

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
    ("action", "asked"),
    [
        (lambda: torch.empty(2**50, dtype=torch.uint8), f"{format_bytes(2**50)} more were asked for"),
        (lambda: np.empty(2**43, dtype=np.uint8), f"{format_bytes(2**43)} more were asked for"),
        (lambda: bytearray(2**62), "more was asked for"),
    ],
    ids=["torch", "numpy", "Python"],
)
def test_an_allocation_that_fails_says_what_was_asked_for_and_what_there_is(action, asked: str) -> None:
    told = describe_failure(raised(action), DOING)
    assert told["kind"] == "memory"
    assert told["text"].startswith(f"ran out of memory in {DOING}: ")
    assert f"{asked}, it holds " in told["text"]
    assert "the machine has " in told["text"]
    assert "test_failure_report.py" in told["text"]


def test_the_memory_of_a_gpu_is_memory_too() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of …")
    assert "20.0 MiB more were asked for" in describe_failure(error, DOING)["text"]


@pytest.mark.parametrize(
    ("error", "doing"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:5"), DOING),
        (RuntimeError("[enforce fail at gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1ms"), DOING),
        (dist.DistNetworkError("failed to connect"), DOING),
        (RuntimeError("Unable to find address for: eth7"), RENDEZVOUS),
    ],
)
def test_a_rank_that_was_lost_by_another_is_a_lost_connection(error: BaseException, doing: str) -> None:
    told = describe_failure(error, doing)
    assert told["kind"] == "connection"
    assert (doing if doing is DOING else "could not reach the other ranks") in told["text"]
    assert str(error).splitlines()[-1] in told["text"]


def test_an_error_of_ours_is_told_as_it_is() -> None:
    told = describe_failure(DocumentError("cannot write x: disk full"), DOING)
    assert (told["kind"], told["text"]) == ("refusal", "cannot write x: disk full")


def test_an_error_of_the_users_code_comes_with_its_line() -> None:
    told = describe_failure(raised(fail_in_a_list), DOING)
    assert told["kind"] == "error"
    assert told["text"].startswith(f"failed in {DOING}: IndexError: list index out of range, at ")
    assert told["text"].endswith("in fail_in_a_list")
    assert "Traceback" in told["traceback"]


def test_of_a_loaders_traceback_the_last_line_is_told() -> None:
    error = ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback:\n  x\nValueError: bad\n")
    assert describe_failure(error, DOING)["text"] == f"failed in {DOING}: ValueError: bad"


class Deadly(Dataset):
    """Ends the process that reads it."""

    def __init__(self, by_signal: bool) -> None:
        self.by_signal = by_signal

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> int:
        if self.by_signal:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)


def one_after_another(*texts: str) -> BaseException:
    """As torch raises them: the later because of the earlier."""
    error: BaseException = queue.Empty()
    for text in texts:
        try:
            raise RuntimeError(text) from error
        except RuntimeError as next_one:
            error = next_one
    return error


FOUND_GONE = "DataLoader worker (pid(s) 71, 72) exited unexpectedly"
KILLED = "DataLoader worker (pid 71) is killed by signal: Killed. "
EXITED = "DataLoader worker (pid 71) exited unexpectedly with exit code 3. Details are lost due to multiprocessing."


@pytest.mark.parametrize(
    ("error", "fate"),
    [
        (one_after_another(KILLED), "process 71 was killed by a signal (Killed)"),
        (one_after_another(EXITED), "process 71 ended with exit code 3"),
        (one_after_another(FOUND_GONE), "processes 71, 72 ended without an exit code"),
        (one_after_another(KILLED, FOUND_GONE), "process 71 was killed by a signal (Killed)"),
    ],
    ids=["signal", "exit code", "found gone", "found gone after a signal"],
)
def test_a_loader_that_was_lost_is_told_in_one_sentence_whoever_noticed_it(error: BaseException, fate: str) -> None:
    told = describe_failure(error, DOING)
    assert told["kind"] == "loader"
    assert told["text"] == f"lost a process that loads its data in {DOING}: {fate}"


class Ending(Dataset):
    """What it sends can no longer be fetched once its process is gone, though that is still on its way out."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> torch.Tensor:
        return torch.zeros(2)


@pytest.mark.parametrize("way", [ConnectionResetError(104, "Connection reset by peer"), EOFError()], ids=repr)
def test_a_loader_that_is_ending_while_its_samples_are_fetched_is_a_lost_one(
    way: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = iter(DataLoader(Ending(), num_workers=1))

    def get(timeout: float) -> None:
        raise way

    with monkeypatch.context() as patch:
        patch.setattr(loader._data_queue, "get", get)
        told = describe_failure(raised(lambda: next(loader)), DOING)
    assert told["kind"] == "loader"
    assert told["text"] == (
        f"lost a process that loads its data in {DOING}: it ended while it sent samples "
        f"({type(way).__name__}{f': {way}' if str(way) else ''})"
    )
    # One that the data raises is the data's.
    assert (
        describe_failure(raised(lambda: next(iter(DataLoader(Broken(way), num_workers=1)))), DOING)["kind"] == "error"
    )


class Broken(Dataset):
    """Its own connection broke."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 1

    def __getitem__(self, position: int) -> torch.Tensor:
        raise self.error


class Interrupted:
    """The launcher, to which something is told when the news of a loader's end comes."""

    def __init__(self, news: str) -> None:
        self.news: str | None = news
        self.told: list[dict] = []

    def answer(self, event: str, **content: object) -> None:
        if self.news is not None:
            news, self.news = self.news, None
            raise RuntimeError(news)
        self.told.append({"event": event, **content})


def test_news_of_a_loader_that_come_while_its_loss_is_told_are_told_too() -> None:
    launcher = Interrupted(KILLED)
    told = report_failure(launcher, one_after_another(FOUND_GONE), DOING)  # type: ignore[arg-type]
    assert launcher.told == [{"event": "failed", **told}]
    assert told["text"].endswith(": process 71 was killed by a signal (Killed)")


@pytest.mark.parametrize("by_signal", [True, False])
def test_torch_still_words_the_end_of_a_loader_as_is_expected_here(by_signal: bool) -> None:
    told = describe_failure(raised(lambda: next(iter(DataLoader(Deadly(by_signal), num_workers=1)))), DOING)
    assert told["kind"] == "loader"
    known = r"was killed by a signal \(Killed\)" if by_signal else "ended with exit code 3"
    assert re.search(rf"process \d+ ({known}|ended without an exit code)$", told["text"])
