"""The comparison of methods of sending gradients in a real page: launched, drawn and stopped by keyboard."""

from pathlib import Path

from tests.browser.lab import Lab

RECORD = Path(__file__).parents[1] / "records" / "recorded" / "measured-transfers.json"
JOB = """
import deeppool as dp
import torch
job = dp.TrainingJob(model=torch.nn.Linear(8, 4), input_shape=(8,), dataset=lambda: torch.utils.data.TensorDataset(
    torch.randn(64, 8), torch.randint(4, (64,))), optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1))
"""
PANEL = """
panel = dp.widgets.TransferPanel(job, global_batch=8, methods=["DDP", "Caramel"], repetitions=100)
panel
"""
PROCESSES = (
    "[word for child in __import__('psutil').Process().children(True) for word in child.cmdline() "
    "if 'compared_replica' in word]"
)


def test_a_comparison_is_launched_its_record_drawn_and_it_is_stopped_by_keyboard(lab: Lab) -> None:
    notebook = lab.open_shared([JOB, PANEL])
    panel = notebook.panel(".dp-transfer-panel")
    assert "Nothing has run yet" in panel.inner_text()
    launch, stop = notebook.button(panel, "Launch"), notebook.button(panel, "Stop")
    notebook.press(launch, "Enter")
    notebook.until(lambda: launch.is_disabled() and stop.is_enabled())
    notebook.until(lambda: len(notebook.value(PROCESSES)) >= 2)

    # Measuring the network takes 20 s before there is a record: one from a file stands in for the first repetition.
    notebook.value(f"panel._measured(dp.load({str(RECORD)!r}))")
    methods = notebook.value("[each.name for each in panel.record.ways]")
    drawn = notebook.figure(panel)
    assert drawn.trace("computing")["y"] == methods
    assert set(methods) <= set(drawn.letters)
    assert notebook.value("panel.row.run.state") == "running"

    notebook.press(stop, "Enter")
    notebook.until(launch.is_enabled)
    assert notebook.value("panel.row.run.state") == "cancelled"
    assert notebook.value(PROCESSES) == []
    assert notebook.problem(panel) == ""
