"""Interactive notebook widgets for records and runs.

widgets.ModelPicker("vgg16")             captures any model: graph, coverage and warnings
widgets.ProfilePanel(model)              layer times: measure, cancel, resume or estimate; a table and curves
widgets.AmplificationExplorer(profile)   sliders for limit, GPUs, batch and network, and the resulting plan
widgets.TimelineView(plan)               activity of each GPU over time, with zoom and pan; predicted above measured
widgets.CollocationPanel(plan)           a run with a background job: launch, live figures, slowdown bound, record
widgets.TransferPanel(job, …)            methods of sending gradients on live ranks, measured by turns
widgets.OrderPanel(jobs, …)              the crossover of jobs and other orders on live ranks, measured by turns
widgets.TechniquePanel(job, …)           five techniques and DDP on one workload: which one helps, and why
widgets.ModeComparisonPanel()            synchronous, straggler-aware, majority, solo: loss against time, live
widgets.RunBrowser(folder)               past runs and plans: show one, compare two
widgets.RunPanel(run)                    progress of a live run, with a cancel button
widgets.RunsPanel()                      all your runs on this machine, each with a stop button
widgets.TelemetryPanel()                 current utilisation of cores and GPUs
widgets.Panel([…, widgets.LiveFigure()]) base class of these, and a figure that follows the page, for panels of your own

amplification_explorer, collocation_panel, mode_comparison_panel, model_picker, order_panel, profile_panel, run_browser,
run_panel, runs_panel, technique_panel, telemetry_panel, timeline_view, transfer_panel: the widgets above, and

collocation_settings  the controls of a collocated run
comparison_panel  ways to train on live ranks: selection, progress, stop, result
panel            base class: errors below the controls, figures that follow the page's theme
code_box         buttons that copy what a panel shows as Python or as a command
plan_controls    sliders of an explorer, and buttons to values with which there is a plan
plan_comparison  a plan among all efficient plans, or among ways to share the cluster
layer_reasons    why a layer of a plan has its number of GPUs
layer_figure     the layers of a plan as bars or on the graph of its model
live_figure      a displayed figure that is updated in place; plotly_library: its JavaScript, once for all figures
page             theme, keys and unanswered clicks in the browser
controls         labelled sliders and drop-down lists
markup           HTML paragraphs and lists
ticker           a run drawn anew each second, also while it reports nothing
run_row          start and cancel buttons with progress
sortable_table   a table with sortable columns and selectable rows; layer_rows: the layers of a profile for it
exploration      cached plans, frontiers and shared clusters of one profile
latest_task      a background thread that runs only the newest task
"""

from deeppool.widgets.amplification_explorer import AmplificationExplorer
from deeppool.widgets.collocation_panel import CollocationPanel
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.mode_comparison_panel import ModeComparisonPanel
from deeppool.widgets.model_picker import ModelPicker
from deeppool.widgets.order_panel import OrderPanel
from deeppool.widgets.panel import Panel
from deeppool.widgets.profile_panel import ProfilePanel
from deeppool.widgets.run_browser import RunBrowser
from deeppool.widgets.run_panel import RunPanel
from deeppool.widgets.runs_panel import RunsPanel
from deeppool.widgets.technique_panel import TechniquePanel
from deeppool.widgets.telemetry_panel import TelemetryPanel
from deeppool.widgets.timeline_view import TimelineView
from deeppool.widgets.transfer_panel import TransferPanel

__all__ = [
    "AmplificationExplorer",
    "CollocationPanel",
    "LiveFigure",
    "ModeComparisonPanel",
    "ModelPicker",
    "OrderPanel",
    "Panel",
    "ProfilePanel",
    "RunBrowser",
    "RunPanel",
    "RunsPanel",
    "TechniquePanel",
    "TelemetryPanel",
    "TimelineView",
    "TransferPanel",
]
