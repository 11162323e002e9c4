"""What records of runs say in lines."""

import os
from pathlib import Path

from deeppool.records.files import save_run
from deeppool.records.run_record import GovernorResult
from tests.figures.records import run_of


def test_a_governor_tells_its_estimate_with_two_standard_errors() -> None:
    found = GovernorResult(slowdown=0.021, error=0.006, alone=40, collocated=100, share=0.5, banned=("conv1",))
    assert str(found) == "slowdown +2.1 % ± 1.2 (40 iterations alone), share 50 %, nothing beside conv1"
    assert str(GovernorResult(None, None, 0, 0, 1.0, ())) == "slowdown unknown, share 100 %"


def test_records_and_the_folder_of_runs_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = save_run(run_of(), tmp_path / "runs")
    finally:
        os.umask(before)
    assert [oct(x.stat().st_mode & 0o777) for x in (path.parent, path)] == ["0o700", "0o600"]
