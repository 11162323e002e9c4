"""What all widgets have in common, in a real page: the theme, the keyboard, the place for errors."""

from tests.browser.lab import Lab

IMPORT = "import deeppool as dp"
TELEMETRY = "sampler = dp.Sampler(interval=0.1)\npanel = dp.widgets.TelemetryPanel(sampler)\npanel"


def test_a_figure_follows_its_data_and_the_theme_of_the_page(lab: Lab) -> None:
    notebook = lab.open([IMPORT, TELEMETRY])
    panel = notebook.panel(".dp-telemetry-panel")
    light = notebook.figure(panel)
    notebook.changed(panel, light)
    notebook.set_theme("JupyterLab Dark")
    notebook.until(lambda: notebook.figure(panel).paper != light.paper)
    dark = notebook.figure(panel)
    assert dark.filled != light.filled
    assert dark.font != light.font
    assert notebook.value("panel.dark") is True


def test_a_button_is_pressed_by_keyboard(lab: Lab) -> None:
    notebook = lab.open([IMPORT, TELEMETRY])
    panel = notebook.panel(".dp-telemetry-panel")
    stop = notebook.button(panel, "Stop")
    notebook.press(stop, "Enter")
    notebook.until(stop.is_disabled)
    still = notebook.value("len(sampler.telemetry().samples)")
    assert notebook.value("len(sampler.telemetry().samples)") == still
    assert notebook.problem(panel) == ""
