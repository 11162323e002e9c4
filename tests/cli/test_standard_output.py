"""Commands whose standard output is closed, or has no Unicode."""

import io
import sys

import pytest

from deeppool import cli


def test_a_closed_standard_output_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deeppool.cli.app.app", lambda: print("a result"))
    # As Python starts after ``>&-``.
    monkeypatch.setattr(sys, "stdout", None)
    cli.main()
    assert capsys.readouterr().err == ""


def test_characters_that_a_terminal_does_not_have_are_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr("deeppool.cli.app.app", lambda: print("loss 2.3 → 1.9 ± 0.1"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    cli.main()
    assert written.getvalue().decode("latin-1") == "loss 2.3 ? 1.9 ± 0.1\n"
