"""Records and runs as interactive widgets in a notebook.

widgets.AmplificationExplorer(profile)   sliders for limit, GPUs, batch and network, and the plan they ask for
widgets.TimelineView(plan)               what each GPU does when; a run's prediction above what was measured
widgets.RunPanel(run)                    a live run: how far it is, and a button that ends it
widgets.RunsPanel()                      every run of yours on this machine, each with a button that ends it
widgets.TelemetryPanel()                 what the devices do now

exploration   what an explorer asks of the planner
latest        long computations of which only the newest matters
controls      labelled steps and lists
panel         what all of them are: errors under the controls, figures that follow the page's theme
live_figure   a figure that becomes another one in place
page          what only the page knows
"""

from deeppool.widgets.amplification_explorer import AmplificationExplorer
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_panel import RunPanel
from deeppool.widgets.runs_panel import RunsPanel
from deeppool.widgets.telemetry_panel import TelemetryPanel
from deeppool.widgets.timeline_view import TimelineView

__all__ = ["AmplificationExplorer", "Panel", "RunPanel", "RunsPanel", "TelemetryPanel", "TimelineView"]
