"""The comparison of training modes in a real page: started by keyboard, drawn while it trains, and told at the end."""

from tests.browser.lab import Lab

CELL = "import deeppool as dp\npanel = dp.widgets.ModeComparisonPanel(ranks=2, updates=8, longest_delay=0.0)\npanel"
MODES = ["full", "straggler-aware", "majority", "solo"]


def test_modes_are_trained_by_keyboard_and_drawn_while_they_train(lab: Lab) -> None:
    notebook = lab.open_shared([CELL])
    panel = notebook.panel(".dp-mode-comparison-panel")
    assert "Nothing has run yet" in panel.inner_text()
    train = notebook.button(panel, "Train")
    notebook.press(train, "Enter")

    # What batches cost, before anything is known of other data.
    notebook.until(lambda: len(notebook.figure(panel).traces) > 0)
    before = notebook.figure(panel)
    assert before.traces[0]["name"] == MODES[0]
    assert "yaxis2" not in before.axes

    notebook.until(train.is_enabled)
    after = notebook.changed(panel, before)
    assert [trace["name"] for trace in after.traces] == [mode for mode in MODES for _ in ("loss", "accuracy")]
    record = notebook.value("[training.final.accuracy for training in panel.record.trainings]")
    assert [trace["y"][-1] for trace in after.traces[1::2]] == [100 * accuracy for accuracy in record]
    assert "2 ranks" in panel.inner_text()
    assert notebook.problem(panel) == ""
