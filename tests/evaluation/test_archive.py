"""The folder of nightly runs: finished runs stay whole, old ones are removed, other folders never."""

import datetime
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deeppool.base import serialization
from deeppool.errors import DocumentError, InvalidValueError, RunError
from deeppool.evaluation.archive import NightlyArchive
from deeppool.evaluation.nightly_record import NightlyRun, NotebookOutcome

FIRST = datetime.date(2026, 1, 5)


def nightly_run(day: int, *, done: bool = True, preset: str = "quick") -> NightlyRun:
    date = (FIRST + datetime.timedelta(days=day)).isoformat()
    outcome = NotebookOutcome("fig1", "Fig 1", "done" if done else "failed", "", False, {}, 1.0, "", "")
    return NightlyRun(
        name=date,
        preset=preset,
        device="here",
        notebooks=("fig1",),
        started=f"{date}T02:00:00+00:00",
        finished=f"{date}T03:00:00+00:00",
        versions={},
        outcomes=(outcome,),
    )


def archived(folder: Path, *runs: NightlyRun) -> NightlyArchive:
    archive = NightlyArchive(folder)
    for each in runs:
        archive.publish(each)
    return archive


def names(runs: list[NightlyRun]) -> list[str]:
    return [each.name for each in runs]


# -- retention --------------------------------------------------------------------------------------


def test_the_newest_runs_are_kept(tmp_path: Path) -> None:
    archive = archived(tmp_path, *(nightly_run(day) for day in (3, 0, 2, 1)))
    archive.remove_old(keep=2)
    assert names(archive.runs()) == ["2026-01-07", "2026-01-08"]


def test_runs_are_in_the_order_of_time_where_the_clock_was_set_back(tmp_path: Path) -> None:
    """As at the end of summer time, or on a machine that was moved to UTC."""
    summer = replace(nightly_run(0), started="2026-10-25T02:30:00+02:00")
    winter = replace(nightly_run(1), started="2026-10-25T02:10:00+01:00")
    archive = archived(tmp_path, winter, summer)
    assert names(archive.runs()) == [summer.name, winter.name]
    archive.remove_old(keep=1)
    assert names(archive.runs()) == [winter.name]


@pytest.mark.parametrize("started", ["", "yesterday", "2026-10-25T02:30:00"])
def test_a_run_without_a_moment_of_its_start_is_none(started: str) -> None:
    with pytest.raises(InvalidValueError, match=f"started must be a date and time with an offset, got '{started}'"):
        replace(nightly_run(0), started=started)


def test_a_run_is_told_in_a_line() -> None:
    assert str(nightly_run(0, done=False)) == (
        "2026-01-05 (quick, here; 2026-01-05T02:00:00+00:00): 0 of 1 notebooks done, 1 failed, 0 numbers, "
        "0 of 0 checks hold"
    )


def test_quick_runs_replace_no_full_ones_and_machines_are_counted_apart(tmp_path: Path) -> None:
    full, elsewhere = nightly_run(0, preset="full"), replace(nightly_run(1), device="elsewhere")
    archive = archived(tmp_path, full, elsewhere, *(nightly_run(day) for day in range(2, 6)))
    archive.remove_old(keep=1)
    assert names(archive.runs()) == [full.name, elsewhere.name, "2026-01-10"]


def test_failed_runs_count_as_others_do(tmp_path: Path) -> None:
    archive = archived(tmp_path, nightly_run(0), nightly_run(1, done=False), nightly_run(2, done=False))
    archive.remove_old(keep=2)
    assert names(archive.runs()) == ["2026-01-06", "2026-01-07"]


# -- the folder -------------------------------------------------------------------------------------


def test_a_published_run_is_read_only_and_listed_and_the_unfinished_one_is_gone(tmp_path: Path) -> None:
    archive = archived(tmp_path / "nights", nightly_run(0), nightly_run(1))
    assert names(archive.runs()) == ["2026-01-05", "2026-01-06"]
    assert not archive.unfinished.exists()
    assert (archive.folder / "2026-01-05" / "night.json").stat().st_mode & 0o222 == 0


def test_a_second_run_of_a_day_has_a_number(tmp_path: Path) -> None:
    archive = archived(tmp_path, nightly_run(0), replace(nightly_run(0), name="2026-01-05-2"))
    assert archive.free_name("2026-01-05") == "2026-01-05-3"
    assert archive.free_name("2026-01-06") == "2026-01-06"


def test_removal_takes_whole_runs_and_nothing_else(tmp_path: Path) -> None:
    archive = archived(tmp_path, nightly_run(0), nightly_run(1))
    foreign = ["2025-12-24", "photos", ".hidden", ".photos.removed"]
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    # A copy of a run under another name belongs to the user.
    (tmp_path / "2026-01-09").mkdir()
    serialization.write(nightly_run(0), tmp_path / "2026-01-09" / "night.json")
    assert names(archive.runs()) == ["2026-01-05", "2026-01-06"]
    (tmp_path / ".2026-01-02.removed").mkdir()  # whose removal was interrupted
    archive.remove_old(keep=1)
    assert {path.name for path in tmp_path.iterdir()} == {*foreign, "2026-01-06", "2026-01-09"}


def test_a_run_that_cannot_be_read_is_skipped_and_kept(tmp_path: Path) -> None:
    archive = archived(tmp_path, nightly_run(0))
    (tmp_path / "2026-01-07").mkdir()
    (tmp_path / "2026-01-07" / "night.json").write_text("{")
    assert names(archive.runs()) == ["2026-01-05"]
    archive.remove_old(keep=1)
    assert (tmp_path / "2026-01-07").is_dir()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nights").touch()
    with pytest.raises(DocumentError, match=r"cannot write .*nights: File exists"):
        NightlyArchive(tmp_path / "nights")


# -- the lock ---------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_until_the_first_process_ends(tmp_path: Path) -> None:
    program = "import sys; from deeppool.evaluation.archive import NightlyArchive\n"
    program += "with NightlyArchive(sys.argv[1]).locked(): print('in', flush=True); sys.stdin.read()"
    archive = NightlyArchive(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "in\n"
        with pytest.raises(RunError, match=f"another nightly writes to {tmp_path}"), archive.locked():
            pass
        # However the first one ends.
        first.kill()
        first.wait()
        with archive.locked():
            assert (tmp_path / ".lock").is_file()
    with archive.locked():
        assert archive.runs() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_cannot_be_locked(tmp_path: Path) -> None:
    archive = NightlyArchive(tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(DocumentError, match=f"cannot write {tmp_path}: Permission denied"), archive.locked():
        pass
