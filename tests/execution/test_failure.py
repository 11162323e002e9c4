"""What a rank tells of an exception: the real exceptions of torch, numpy and Python."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from deeppool.errors import DocumentError
from deeppool.execution.failure import MEETING, describe
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
    told = describe(raised(action), DOING)
    assert told["kind"] == "memory"
    assert told["text"].startswith(f"ran out of memory in {DOING}: ")
    assert f"{asked}, it holds " in told["text"]
    assert "the machine has " in told["text"]
    assert "test_failure.py" in told["text"]


def test_the_memory_of_a_gpu_is_memory_too() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of …")
    assert "20.0 MiB more were asked for" in describe(error, DOING)["text"]


@pytest.mark.parametrize(
    ("error", "doing"),
    [
        (RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:5"), DOING),
        (RuntimeError("[enforce fail at gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1ms"), DOING),
        (dist.DistNetworkError("failed to connect"), DOING),
        (RuntimeError("Unable to find address for: eth7"), MEETING),
    ],
)
def test_a_rank_that_was_lost_by_another_is_a_lost_connection(error: BaseException, doing: str) -> None:
    told = describe(error, doing)
    assert told["kind"] == "connection"
    assert (doing if doing is DOING else "could not reach the other ranks") in told["text"]
    assert str(error).splitlines()[-1] in told["text"]


def test_an_error_of_ours_is_told_as_it_is() -> None:
    told = describe(DocumentError("cannot write x: disk full"), DOING)
    assert (told["kind"], told["text"]) == ("refusal", "cannot write x: disk full")


def test_an_error_of_the_users_code_comes_with_its_line() -> None:
    told = describe(raised(fail_in_a_list), DOING)
    assert told["kind"] == "error"
    assert told["text"].startswith(f"failed in {DOING}: IndexError: list index out of range, at ")
    assert told["text"].endswith("in fail_in_a_list")
    assert "Traceback" in told["traceback"]


def test_of_a_loaders_traceback_the_last_line_is_told() -> None:
    error = ValueError("Caught ValueError in DataLoader worker process 0.\nOriginal Traceback:\n  x\nValueError: bad\n")
    assert describe(error, DOING)["text"] == f"failed in {DOING}: ValueError: bad"
