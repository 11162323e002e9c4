"""The timeline view in a page: its window and kinds by keyboard, at 8 and at 1,024 GPUs, and the export."""

import pytest

from tests.browser.lab import Lab

CELLS = [
    "import deeppool as dp",
    'profile = dp.find_profile("vgg16-cpu")',
    "view = dp.widgets.TimelineView(dp.plan(profile, 8, 32, 2.0), dp.plan(profile, 1024, 1024, 2.0))\nview",
]


@pytest.mark.stress
def test_window_kinds_and_timelines_are_chosen_by_keyboard(lab: Lab) -> None:
    notebook = lab.open_shared(CELLS)
    panel = notebook.panel(".dp-timeline-view")
    whole = notebook.figure(panel)
    assert "GPU 0" in whole.letters
    assert any(letters.startswith("GPU ") and "1023" in letters for letters in whole.letters)

    notebook.press(notebook.button(panel, "Narrower"), "Enter")
    near = notebook.changed(panel, whole)
    assert near.axes["xaxis"]["range"][0] > whole.axes["xaxis"]["range"][0]
    assert near.axes["xaxis"]["range"] == near.axes["xaxis2"]["range"]

    notebook.press(notebook.slider(panel, notebook.value("view.window.description")), *["ArrowRight"] * 40)
    notebook.until(lambda: notebook.figure(panel).axes["xaxis"]["range"][0] > near.axes["xaxis"]["range"][0])
    assert notebook.value("view.problem") == ""

    notebook.press(notebook.button(panel, "idle"), "Enter")
    notebook.until(lambda: notebook.value("view.kinds['idle'].value") is False)
    notebook.until(lambda: "idle" not in {trace["name"] for trace in notebook.figure(panel).traces})

    before = notebook.figure(panel)
    notebook.press(panel.get_by_label("timelines"), "ArrowDown")
    one = notebook.changed(panel, before)
    assert "xaxis2" not in one.axes
    assert "GPU 7" in one.letters

    notebook.press(notebook.button(panel, "Export for Perfetto"), "Enter")
    notebook.until(lambda: "written:" in panel.inner_text())
    kinds = "{event.get('cat') for event in __import__('json').load(open('timeline.json'))['traceEvents']} - {None}"
    assert notebook.value(kinds) >= {"forward", "backward", "sync", "idle"}
