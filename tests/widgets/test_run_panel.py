"""The panel of a run without a browser; what it shows of the run is tested with the handle."""

import deeppool as dp
from deeppool.widgets.run_panel import RunPanel
from tests.waiting import TIMEOUT, wait_until


def test_devices_are_not_offered_after_the_end() -> None:
    run = dp.start(count)
    panel = RunPanel(run)
    run.result(TIMEOUT)
    wait_until(lambda: panel.stop.disabled)
    assert panel.devices.disabled
    assert RunPanel(run).devices.disabled


def count(*, on_progress=None) -> None:
    on_progress("counting", 0.5)
