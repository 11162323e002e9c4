"""The folder of nights: what is in it stays whole, old nights go by the rule, foreign folders never."""

import datetime
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.base import serialization
from deeppool.errors import DocumentError, InvalidValueError, RunError
from deeppool.evaluation.archive import Archive
from deeppool.evaluation.lock import sole_writer
from deeppool.evaluation.nightly_record import NightlyRun, Outcome
from deeppool.evaluation.retention import superfluous

FIRST = datetime.date(2026, 1, 5)  # a Monday


def night(day: int, *, complete: bool = True, preset: str = "quick") -> NightlyRun:
    date = (FIRST + datetime.timedelta(days=day)).isoformat()
    outcome = Outcome("fig1", "Fig 1", "done" if complete else "failed", "", False, {}, 1.0, "", "")
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


def archived(folder: Path, *nights: NightlyRun) -> Archive:
    archive = Archive(folder)
    for each in nights:
        archive.publish(each)
    return archive


def names(nights: list[NightlyRun]) -> list[str]:
    return [each.name for each in nights]


# -- which go ---------------------------------------------------------------------------------------


def test_the_latest_nights_stay_and_of_each_earlier_week_the_last() -> None:
    nights = [night(day) for day in range(35)]  # five whole weeks
    gone = superfluous(nights, keep=7)
    assert names([each for each in nights if each not in gone]) == [
        *names([night(6), night(13), night(20), night(27)]),
        *names([night(day) for day in range(28, 35)]),
    ]


def test_of_a_week_a_complete_night_stays_before_a_later_one_that_is_not() -> None:
    nights = [night(day, complete=day != 6) for day in range(14)]
    kept = [each for each in nights if each not in superfluous(nights, keep=7)]
    assert kept[0] == night(5)


def test_the_latest_complete_night_stays_however_old() -> None:
    nights = [night(0), *(night(day, complete=False) for day in range(500, 520))]
    assert night(0) not in superfluous(nights, keep=3)


def test_after_a_year_a_week_goes_too() -> None:
    nights = [night(0), *(night(day) for day in range(400, 420))]
    assert night(0) in superfluous(nights, keep=3)


def test_quick_nights_push_out_no_full_ones() -> None:
    nights = [night(0, preset="full"), *(night(day) for day in range(400, 420))]
    assert nights[0] not in superfluous(nights, keep=3)


@given(st.sets(st.integers(0, 800), min_size=1), st.sets(st.integers(0, 800)), st.integers(1, 20))
def test_what_stays_today_was_kept_by_the_same_rule_yesterday(days: set[int], broken: set[int], keep: int) -> None:
    nights = [night(day, complete=day not in broken) for day in sorted(days)]
    kept = [each for each in nights if each not in superfluous(nights, keep)]
    assert superfluous(kept, keep) == []
    assert kept[-keep:] == nights[-keep:]
    complete = [each for each in nights if each.complete]
    assert not complete or complete[-1] in kept


def test_to_keep_no_night_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="keep must be at least 1 night, got 0"):
        superfluous([], 0)


# -- the folder -------------------------------------------------------------------------------------


def test_a_published_night_is_read_only_and_found_and_the_unfinished_one_is_gone(tmp_path: Path) -> None:
    archive = archived(tmp_path / "nights", night(0), night(1))
    assert names(archive.nights()) == ["2026-01-05", "2026-01-06"]
    assert not archive.unfinished.exists()
    assert (archive.folder / "2026-01-05" / "night.json").stat().st_mode & 0o222 == 0


def test_a_second_night_of_a_day_has_a_number(tmp_path: Path) -> None:
    archive = archived(tmp_path, night(0), replace(night(0), name="2026-01-05-2"))
    assert archive.free_name("2026-01-05") == "2026-01-05-3"
    assert archive.free_name("2026-01-06") == "2026-01-06"


def test_removing_takes_a_night_whole_and_nothing_foreign(tmp_path: Path) -> None:
    archive = archived(tmp_path, night(0), night(1))
    foreign = ["2025-12-24", "photos", ".hidden", ".photos.removed"]
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").touch()
    # A copy of a night under another name is its owner's.
    (tmp_path / "2026-01-09").mkdir()
    serialization.write(night(0), tmp_path / "2026-01-09" / "night.json")
    assert names(archive.nights()) == ["2026-01-05", "2026-01-06"]
    (tmp_path / ".2026-01-02.removed").mkdir()  # whose removal was interrupted
    archive.remove([night(0)])
    assert {path.name for path in tmp_path.iterdir()} == {*foreign, "2026-01-06", "2026-01-09"}


def test_a_night_that_cannot_be_read_is_passed_over_and_kept(tmp_path: Path) -> None:
    archive = archived(tmp_path, night(0))
    (tmp_path / "2026-01-07").mkdir()
    (tmp_path / "2026-01-07" / "night.json").write_text("{")
    assert names(archive.nights()) == ["2026-01-05"]
    archive.remove(superfluous(archive.nights(), 1))
    assert (tmp_path / "2026-01-07").is_dir()


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nights").touch()
    with pytest.raises(DocumentError, match=r"cannot write .*nights: File exists"):
        Archive(tmp_path / "nights")


# -- the lock ---------------------------------------------------------------------------------------


def test_a_second_writer_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    program = "import sys, pathlib; from deeppool.evaluation.lock import sole_writer\n"
    program += "with sole_writer(pathlib.Path(sys.argv[1])): print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as first:
        assert first.stdout is not None and first.stdout.readline() == "in\n"
        with (
            pytest.raises(RunError, match=rf"another nightly \(process {first.pid}\) writes to {tmp_path}"),
            sole_writer(tmp_path),
        ):
            pass
        # However the first one ends.
        first.kill()
        first.wait()
        with sole_writer(tmp_path):
            assert "process" not in (tmp_path / ".lock").read_text()
