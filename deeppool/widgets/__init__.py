"""Records and runs as interactive widgets in a notebook.

widgets.RunPanel(run)       a live run: how far it is, and a button that ends it
widgets.RunsPanel()         every run of yours on this machine, each with a button that ends it
widgets.TelemetryPanel()    what the devices do now

panel         what all of them are: errors under the controls, figures that follow the page's theme
live_figure   a figure that becomes another one in place
page          what only the page knows
"""

from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import RunPanel
from deeppool.widgets.runs_panel import RunsPanel
from deeppool.widgets.telemetry_panel import TelemetryPanel

__all__ = ["Panel", "RunPanel", "RunsPanel", "TelemetryPanel"]
