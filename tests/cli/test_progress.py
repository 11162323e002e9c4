"""Progress of a command whose standard error is a log."""

from deeppool.cli import output


def test_a_log_gets_a_line_of_progress_now_and_then(monkeypatch, capsys):
    clock = [1000.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    with output.progress() as report:
        for seconds, what in [(1, "first"), (29, "second"), (30, "third"), (59, "fourth"), (75, "fifth")]:
            clock[0] = 1000.0 + seconds
            report(what, seconds / 100)
    found = capsys.readouterr()
    assert found.err.splitlines() == ["30% third", "75% fifth"]
    assert found.out == ""
