"""Records and runs as interactive widgets in a notebook.

widgets.ModelPicker("vgg16")             any model: capture it, see its graph, what it covers, and warnings
widgets.ProfilePanel(model)              layer times: measure, cancel, resume, or estimate; a table and curves
widgets.AmplificationExplorer(profile)   sliders for limit, GPUs, batch and network, and the plan they ask for
widgets.TimelineView(plan)               what each GPU does when, with a window of time to move; a run's plan above it
widgets.CollocationPanel(plan)           a run beside a background job: launched, followed, its bound changed, kept
widgets.RunBrowser(folder)               past runs and plans: one shown, two compared
widgets.RunPanel(run)                    a live run: how far it is, and a button that ends it
widgets.RunsPanel()                      every run of yours on this machine, each with a button that ends it
widgets.TelemetryPanel()                 what the devices do now

panel            what all of them are: errors under the controls, figures that follow the page's theme
live_figure      a figure that becomes another one in place
page             what only the page knows
controls         labelled steps and lists
prose            sentences between the controls
run_row          a button that starts a call, one that cancels it, how far it is
sortable_table   a table sorted and chosen from by mouse and keyboard; layer_rows: the layers of a profile in it
record_view      a record, or two compared, as a figure and a text
exploration      what an explorer asks of the planner
latest           long computations of which only the newest matters
"""

from deeppool.widgets.amplification_explorer import AmplificationExplorer
from deeppool.widgets.collocation_panel import CollocationPanel
from deeppool.widgets.model_picker import ModelPicker
from deeppool.widgets.panel import Panel
from deeppool.widgets.profile_panel import ProfilePanel
from deeppool.widgets.run_browser import RunBrowser
from deeppool.widgets.run_panel import RunPanel
from deeppool.widgets.runs_panel import RunsPanel
from deeppool.widgets.telemetry_panel import TelemetryPanel
from deeppool.widgets.timeline_view import TimelineView

__all__ = [
    "AmplificationExplorer",
    "CollocationPanel",
    "ModelPicker",
    "Panel",
    "ProfilePanel",
    "RunBrowser",
    "RunPanel",
    "RunsPanel",
    "TelemetryPanel",
    "TimelineView",
]
