"""What a look into a folder finds: records by kind and age, and files that are none."""

import json
import os
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.errors import DocumentError
from deeppool.records.files import save_run
from deeppool.records.record_index import HEAD, record_index
from tests.figures.records import run_of, two_layer_plan


def put(path: Path, text: str, when: float) -> None:
    path.write_text(text)
    os.utime(path, (when, when))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dp.save(two_layer_plan(), tmp_path / "plan.json")
    dp.save(run_of(), tmp_path / "run.json")
    for when, name in enumerate(["plan.json", "run.json"]):
        os.utime(tmp_path / name, (when, when))
    whole = (tmp_path / "run.json").read_text()
    put(tmp_path / "half.json", whole[: len(whole) // 2], 2)
    put(tmp_path / "theirs.json", '{"scripts": {}}', 3)
    put(tmp_path / "later.json", '{"format": "deeppool/dream", "version": 1}', 4)
    put(tmp_path / "empty.json", "", 5)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe" * 5000)
    os.utime(tmp_path / "binary.json", (6, 6))
    (tmp_path / "notes.txt").write_text("not json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ".hidden.json").write_text("{}")
    return tmp_path


def test_files_are_listed_the_newest_first_with_what_they_are(folder: Path) -> None:
    assert [(entry.path.name, entry.kind, entry.model, entry.problem) for entry in record_index(folder)] == [
        ("binary.json", None, None, "not a file of deeppool"),
        ("empty.json", None, None, "not a file of deeppool"),
        ("later.json", "dream", None, "of kind 'dream', which this deeppool does not support"),
        ("theirs.json", None, None, "not a file of deeppool"),
        ("half.json", "run", "tiny", "cut off before its end"),
        ("run.json", "run", "tiny", None),
        ("plan.json", "plan", "tiny", None),
    ]


@pytest.mark.parametrize("name", ["a\tb", r"a\qb", r"\ud800"])
def test_a_model_that_is_no_text_of_json_is_a_problem_of_its_file_alone(folder: Path, name: str) -> None:
    put(folder / "edited.json", f'{{"format": "deeppool/plan", "version": 1, "model": "{name}"}}', 7)
    first, *others = record_index(folder)
    assert (first.kind, first.model, first.problem) == ("plan", None, "not JSON where it names its model")
    assert len(others) == 7
    with pytest.raises(DocumentError, match="not JSON"):
        dp.load(first.path)


def test_an_entry_reads_as_a_line(folder: Path) -> None:
    lines = {entry.path.name: str(entry) for entry in record_index(folder)}
    assert lines["plan.json"].endswith("plan.json: plan of tiny")
    assert lines["half.json"].endswith("half.json: cut off before its end")


def test_every_file_that_is_said_to_be_whole_can_be_read(folder: Path) -> None:
    for entry in record_index(folder):
        if entry.problem is None:
            assert dp.load(entry.path).model == entry.model
        else:
            with pytest.raises(DocumentError):
                dp.load(entry.path)


def test_a_large_file_is_read_at_its_ends_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = json.loads(dp.save(run_of(), tmp_path / "run.json").read_text())
    record["notes"] = ["x" * 10**7]
    (tmp_path / "run.json").write_text(json.dumps(record))
    read: list[int] = []
    real = Path.open

    def counting(path: Path, *arguments: str):
        stream = real(path, *arguments)
        before = stream.read

        class Counted:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                stream.close()

            def seek(self, *where):
                return stream.seek(*where)

            def read(self, *most):
                found = before(*most)
                read.append(len(found))
                return found

        return Counted()

    monkeypatch.setattr(Path, "open", counting)
    (entry,) = record_index(tmp_path)
    assert (entry.kind, entry.model, entry.problem) == ("run", "tiny", None)
    assert entry.size > 10**7
    assert sum(read) <= 2 * HEAD


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"cannot list .*: No such file or directory"):
        record_index(tmp_path / "none")
    assert record_index(tmp_path) == ()


# -- where a run's record lands -------------------------------------------------------------------------


def test_a_runs_record_lands_under_what_ran_and_when(tmp_path: Path) -> None:
    path = save_run(run_of(), tmp_path / "new" / "runs")
    assert path == tmp_path / "new" / "runs" / "run-2026-11-21T05-00-00-tiny-mobilenet_v2.json"
    assert dp.load(path) == run_of()
    again = save_run(run_of(), path.parent)
    assert again.name == "run-2026-11-21T05-00-00-tiny-mobilenet_v2-2.json"
    assert save_run(run_of(background=False), path.parent).name == "run-2026-11-21T05-00-00-tiny.json"


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    with pytest.raises(DocumentError, match="cannot make the folder"):
        save_run(run_of(), tmp_path / "runs")
