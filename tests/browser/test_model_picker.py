"""The picker in a real page: a model captured again by keyboard alone, and an error that is seen."""

import pytest

from tests.browser.lab import Lab, Notebook

CELLS = ["import deeppool as dp", "panel = dp.widgets.ModelPicker('alexnet', (3, 64, 64))\npanel"]


def names(notebook: Notebook) -> list[str]:
    """Of the layers that the kernel has, in its order."""
    found: list[str] = notebook.value("[layer.name for layer in panel.graph.layers]")
    return found


@pytest.mark.stress
def test_a_model_is_captured_again_by_keyboard_and_its_graph_is_drawn(lab: Lab) -> None:
    notebook = lab.open(CELLS)
    panel = notebook.panel(".dp-model-picker")
    notebook.until(lambda: len(notebook.figure(panel).traces) > 1)
    before = notebook.figure(panel)
    assert before.title == "alexnet, 12 layers by parameters"
    assert set(names(notebook)) <= set(before.letters)

    notebook.choose(panel, "layers are", "operators")
    notebook.press(notebook.button(panel, "Capture"), "Enter")
    after = notebook.changed(panel, before)
    operators = names(notebook)
    assert len(operators) == 23
    assert set(operators) <= set(after.letters)
    # An edge between each two of a chain.
    assert after.traces[0]["x"].count(None) == len(operators) - 1

    notebook.press(panel.get_by_label("colour by", exact=True), "ArrowDown")
    notebook.until(lambda: notebook.figure(panel).title == "alexnet, 23 layers by output per sample")
    assert "output per sample" in notebook.figure(panel).letters
    assert "chain" in panel.locator(".dp-coverage").inner_text()

    name = panel.get_by_label("model", exact=True)
    notebook.press(name, "Control+a")
    notebook.page.keyboard.type("vgg61")
    notebook.press(name, "Enter")
    notebook.press(notebook.button(panel, "Capture"), "Enter")
    notebook.until(lambda: "unknown model 'vgg61'" in notebook.problem(panel))
    assert notebook.figure(panel).title == "alexnet, 23 layers by output per sample"
    notebook.press(notebook.button(panel, "vgg16"), "Enter")
    notebook.until(lambda: notebook.figure(panel).title.startswith("vgg16, "))
    notebook.until(lambda: notebook.problem(panel) == "" and "Did you mean" not in panel.inner_text())

    notebook.restart_kernel()
    panel.get_by_text("The kernel was restarted, so this panel and its runs are gone").wait_for()
