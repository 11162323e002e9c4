"""Fixtures of the tests of background jobs."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def as_many_threads_as_before() -> Iterator[None]:
    """A background job has one, and so has the loop that it is compared with."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
