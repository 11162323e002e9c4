"""Fixtures of the evaluation's tests."""

from collections.abc import Iterator

import pytest

KERNEL_WARNINGS = "error,ignore::PendingDeprecationWarning"
"""Warnings are errors in started notebooks' processes, except ipykernel's own about its ``do_shutdown``."""


@pytest.fixture(autouse=True, scope="module")
def warnings_are_errors_in_kernels() -> Iterator[None]:
    """Sets the warning filter that processes inherit; pytest's own filters apply in this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", KERNEL_WARNINGS)
        yield
