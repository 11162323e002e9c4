"""Branches on GPUs of their own run at the same time, forward and backward."""

from pathlib import Path

import pytest

from tests.execution import rendezvous_rank
from tests.ranks import FailedRankError, run_ranks


@pytest.mark.processes
def test_branches_on_disjoint_ranks_run_at_the_same_time(tmp_path: Path) -> None:
    """Each branch waits until the other one runs too: in sequence, the first would time out."""
    sets = {"left": (0,), "right": (1,)}
    run_ranks(rendezvous_rank.run_rank, (str(tmp_path), sets, 60.0), 2)
    met = {path.name for path in tmp_path.iterdir() if "-" in path.name}
    assert met == {f"{branch}-{step}" for branch in ("left", "right") for step in ("forward", "backward")}


@pytest.mark.processes
def test_branches_on_the_same_rank_do_not_run_at_the_same_time(tmp_path: Path) -> None:
    sets = {"left": (0,), "right": (0,)}
    with pytest.raises(FailedRankError, match="was alone in its forward"):
        run_ranks(rendezvous_rank.run_rank, (str(tmp_path), sets, 0.0), 2)
