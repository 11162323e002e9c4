"""The log of a measurement keeps what it has."""

import resource
from pathlib import Path

import pytest

from deeppool.errors import DocumentError
from deeppool.profiling.store import MeasurementLog

BYTES = 100


def test_a_log_that_cannot_be_written_when_it_is_resumed_keeps_its_iterations(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first = MeasurementLog(path, "a model")
    for _ in range(20):
        first.add(1, True, ((1.0, 2.0),))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, hard))
    try:
        with pytest.raises(DocumentError, match=r"cannot write .*: File too large"):
            MeasurementLog(path, "a model")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.stat().st_size > BYTES
    assert len(MeasurementLog(path, "a model").runs[1].layered) == 20
