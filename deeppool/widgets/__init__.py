"""Records and runs as interactive widgets in a notebook.

widgets.CollocationPanel(plan)    a run beside a background job: launched, followed, its bound changed, kept
widgets.RunBrowser(folder)        past runs and plans: one shown, two compared
widgets.RunPanel(run)             a live run: how far it is, and a button that ends it
widgets.RunsPanel()               every run of yours on this machine, each with a button that ends it
widgets.TelemetryPanel()          what the devices do now

record_view   a record, or two compared, as a figure and a text
panel         what all of them are: errors under the controls, figures that follow the page's theme
live_figure   a figure that becomes another one in place
page          what only the page knows
"""

from deeppool.widgets.collocation_panel import CollocationPanel
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_browser import RunBrowser
from deeppool.widgets.run_panel import RunPanel
from deeppool.widgets.runs_panel import RunsPanel
from deeppool.widgets.telemetry_panel import TelemetryPanel

__all__ = ["CollocationPanel", "Panel", "RunBrowser", "RunPanel", "RunsPanel", "TelemetryPanel"]
