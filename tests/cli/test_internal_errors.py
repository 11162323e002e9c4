"""An exception that no command expects ends in one line, and its traceback is kept."""

import re
from pathlib import Path

import pytest

from deeppool import cli


def test_an_unexpected_exception_is_one_line_and_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise IndexError("tuple index\nout of range")

    monkeypatch.setattr("deeppool.cli.app.app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert error.startswith("error: IndexError in test_internal_errors.py, line ")
    assert "tuple index out of range (if a file was edited" in error
    found = re.search(r"the traceback is in (\S+)\)", error)
    assert found is not None
    path = Path(found[1])
    assert path.parent == tmp_path
    assert path.stat().st_mode & 0o077 == 0
    assert "in broken" in path.read_text()


def test_without_room_for_the_traceback_the_error_is_still_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> None:
        raise IndexError("tuple index out of range")

    monkeypatch.setattr("deeppool.cli.app.app", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: IndexError in test_internal_errors.py, line ")
    assert error.endswith("the traceback cannot be written: No such file or directory)\n")
