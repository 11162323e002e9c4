"""Pairs of kernels measured on this machine: processes of their own, a record that a simulation takes."""

import pytest

from deeppool import files
from deeppool.errors import InvalidValueError
from deeppool.simulation.collocated import Piece, Step
from deeppool.simulation.measured_interference import measure_interference


@pytest.mark.slow
@pytest.mark.processes
def test_two_kernels_are_measured_in_one_arrangement_and_saved(tmp_path) -> None:
    told: list[tuple[str, float]] = []
    found = measure_interference(
        device="cpu",
        matrices=[16],
        durations=[5e-4],
        arrangements=["normal"],
        seconds=0.05,
        rounds=1,
        on_progress=lambda *x: told.append(x),
    )
    assert [beside.name for beside in found.arrangements] == ["normal"]
    assert len(found.intensities) == 2 and found.durations == (5e-4,)
    (beside,) = found.arrangements
    assert all(rate > 0 for pairs in (beside.foreground, beside.background) for row in pairs for rate in row)
    assert told[0] == ("starting", 0.0) and told[-1] == ("pairs of kernels", 1.0)
    assert files.load(files.save(found, tmp_path / "pairs.json")) == found
    ours, theirs = found.rates("normal")(Step(kind="forward", stage=0, seconds=1e-3), Piece(seconds=1e-3))
    assert ours > 0 and theirs > 0


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"rounds": 0}])
def test_no_time_to_measure_in_is_refused(wrong: dict) -> None:
    with pytest.raises(InvalidValueError, match="seconds must be positive and rounds at least 1"):
        measure_interference(device="cpu", **wrong)


def test_an_arrangement_that_is_not_known_is_refused_before_a_process_starts() -> None:
    with pytest.raises(InvalidValueError, match="got sideways"):
        measure_interference(device="cpu", arrangements=["sideways"])
