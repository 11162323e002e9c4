"""Records and runs as interactive widgets in a notebook.

widgets.run_panel(run)       a live run: how far it is, and a button that ends it
widgets.telemetry_panel()    what the devices do now
"""

from deeppool.widgets.run_panel import run_panel
from deeppool.widgets.telemetry_panel import telemetry_panel

__all__ = ["run_panel", "telemetry_panel"]
