"""Measures or estimates layer times at several batch sizes, and shows them as a table and curves."""

import html
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets
import plotly.graph_objects as go
import traitlets

from deeppool import figures
from deeppool.device.datasheet import GPUS
from deeppool.device.kinds import find_kind
from deeppool.device.protocol import Precision
from deeppool.errors import InvalidValueError
from deeppool.figures.batch_curves import MOST
from deeppool.graph.layer import LayerGraph
from deeppool.graph.shapes import Shapes
from deeppool.profiling.table import Profile
from deeppool.runs.handle import RunHandle, start
from deeppool.widgets.controls import WIDE
from deeppool.widgets.layer_rows import HEADS, SUM, layer_rows
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.markup import bullet_list, paragraph
from deeppool.widgets.panel import Panel
from deeppool.widgets.run_row import RunRow, side_by_side
from deeppool.widgets.sortable_table import SortableTable

if TYPE_CHECKING:
    from torch import nn

    from deeppool.graph.capture.capture import CapturedModel
    from deeppool.profiling.store import ResumeState

MEASUREMENTS = (
    ("measured here: a GPU, else the CPU", "auto"),
    ("measured here: CPU", "cpu"),
    ("measured here: NVIDIA GPU", "cuda"),
)
ESTIMATES = tuple((f"estimated: {sheet.title}", name) for name, sheet in GPUS.items())
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
VIEWS = (("time over the batch size", "curves"), ("graph, coloured by time", "graph"))
EMPTY = "No times yet. Press the button to measure, or choose a GPU's data sheet to estimate without that GPU."
MEASURED, ESTIMATED = "#0072B2", "#B05E00"
"""Background colours of the badge, which has white text."""


class ProfilePanel(Panel):
    """Measures or estimates the layer times of a model and shows them.

        panel = dp.widgets.ProfilePanel(picker.captured, batch_sizes=(1, 2, 4, 8), output="vgg16.json")
        panel                      # start, cancel, resume; a sortable table; curves of selected layers
        panel.profile              # waits for the complete profile; starts the measurement if needed

    It also shows an existing profile: ``ProfilePanel(dp.find_profile("vgg16-cpu"))``.
    """

    selected: Any = traitlets.Tuple(read_only=True)
    """Names of the selected layers, whose curves are drawn, to observe; empty: the whole iteration is drawn."""

    def __init__(
        self,
        model: "Profile | CapturedModel | nn.Module | str",
        input_shape: Shapes | None = None,
        *,
        device: str = "auto",
        batch_sizes: Sequence[int] = (1, 2, 4, 8),
        precision: Precision = "fp32",
        output: str | Path | None = None,
    ) -> None:
        """Lays out the controls; measuring starts when the button is pressed or ``profile`` is read.

        Args:
            model: argument of :func:`deeppool.profile`, or a profile.
            input_shape: shape of one sample, if the model is not captured yet.
            device: ``auto``, ``cpu``, ``cuda``, ``emulated`` or ``emulated:GPU`` to measure, as for
                :func:`deeppool.profile`; the name of a GPU (:func:`deeppool.estimate`) to estimate.
            batch_sizes: per-GPU batch sizes.
            precision: as for :func:`deeppool.profile`.
            output: file of the profile; an interrupted measurement can then be resumed.

        Raises:
            InvalidValueError: an unknown device.
        """
        shown = model if isinstance(model, Profile) else None
        self._model: Any = shown.origin if shown is not None else model
        self._input_shape = input_shape
        self._profile: Profile | None = None
        self._drawing = threading.RLock()
        self._make_controls(device, batch_sizes, precision, output)
        self.figure = LiveFigure()
        # Filled when there is something to draw: plotly cannot determine its width while it is hidden.
        self._results = ipywidgets.VBox()
        self.badge = ipywidgets.HTML(paragraph(EMPTY))
        controls = [
            side_by_side(self.device, self.precision),
            side_by_side(self.batch_sizes, self.output),
            self.resume_hint,
            self.row,
        ]
        super().__init__([*(controls if self._model is not None else []), self.badge, self._results])
        self._connect()
        self._update_start_button()
        if shown is not None:
            self._show_profile(shown)

    @property
    def profile(self) -> Profile:
        """The displayed profile; waits for a running measurement, and starts one if there is none.

        Raises:
            DeeppoolError: the measurement failed or was cancelled.
        """
        run = self.row.run
        if run is not None and (run.state == "running" or self._profile is None):
            return run.result()
        return self._profile if self._profile is not None else self.row.launch().result()

    def static(self) -> go.Figure | None:
        """Returns the curve of the whole iteration over the batch sizes; measures first if needed."""
        return figures.batch_curves(self.profile, dark=self.dark)

    # -- controls ---------------------------------------------------------------------------------

    def _make_controls(
        self, device: str, batch_sizes: Sequence[int], precision: Precision, output: str | Path | None
    ) -> None:
        self.device = ipywidgets.Dropdown(
            description="times", options=_devices(device), value=device, style=WIDE, layout={"width": "26em"}
        )
        self.precision = ipywidgets.Dropdown(
            description="precision", options=PRECISIONS, value=precision, style=WIDE, layout={"width": "12em"}
        )
        self.batch_sizes = ipywidgets.Text(
            description="per-GPU batch sizes",
            value=",".join(map(str, batch_sizes)),
            continuous_update=False,
            style=WIDE,
        )
        self.output = ipywidgets.Text(
            description="save to",
            value="" if output is None else str(output),
            placeholder="for example vgg16.json; needed to resume",
            continuous_update=False,
            style=WIDE,
            layout={"width": "28em"},
        )
        self.resume_hint = ipywidgets.HTML()
        self.row: RunRow[Profile] = RunRow(
            "Measure", self._begin, self._show_profile, self.guarded(self._update_start_button)
        )
        self.view = ipywidgets.Dropdown(description="figure", options=VIEWS, style=WIDE, layout={"width": "20em"})
        self.batch = ipywidgets.Dropdown(
            description="times at per-GPU batch", options=[1], style=WIDE, layout={"width": "19em"}
        )
        self.table = SortableTable(sort_by=SUM, descending=True, most=MOST)

    def _connect(self) -> None:
        self.row.connect(self)
        for control in (self.device, self.precision, self.output):
            control.observe(self.guarded(lambda _: self._update_start_button()), "value")
        self.view.observe(self.guarded(lambda _: self._draw()), "value")
        self.batch.observe(self.guarded(lambda _: self._fill()), "value")
        self.table.observe(self.guarded(lambda _: self._draw()), "selected")
        self.on_theme(self._draw)
        self.on_width(lambda: self._draw() if self.view.value == "graph" else None)

    @property
    def _estimating(self) -> bool:
        return self.device.value in GPUS

    def _update_start_button(self) -> None:
        """Labels the start button with its action: measure, resume an interrupted measurement, or estimate."""
        kept = None if self._estimating else self._resumable()
        self.row.start.description = "Estimate" if self._estimating else "Measure" if kept is None else "Resume"
        self.resume_hint.value = "" if kept is None else paragraph(f"Resumes from {html.escape(str(kept))}.")
        self.row.after_cancel = (
            "Nothing was saved: name a file to be able to resume." if not self.output.value.strip() else ""
        )

    def _resumable(self) -> "ResumeState | None":
        from deeppool.profiling.measure.profile import resumable

        if not self.output.value.strip():
            return None
        graph = getattr(self._model, "graph", None)  # only captured models have one before the measurement
        return resumable(
            self.output.value.strip(),
            graph if isinstance(graph, LayerGraph) else None,
            device=self.device.value,
            precision=self.precision.value,
        )

    # -- measuring --------------------------------------------------------------------------------

    def _begin(self) -> RunHandle[Profile]:
        if self._model is None:
            raise InvalidValueError("this profile does not include its model, so it cannot be measured again here")
        options: dict[str, Any] = {
            "batch_sizes": _numbers(self.batch_sizes.value),
            "precision": self.precision.value,
            "output": self.output.value.strip() or None,
        }
        if self._estimating:
            from deeppool.profiling.estimate.estimate import estimate

            return start(estimate, self._model, self._input_shape, gpu=self.device.value, **options)
        from deeppool.profiling.measure.profile import profile

        return start(profile, self._model, self._input_shape, device=self.device.value, **options)

    def _show_profile(self, profile: Profile) -> None:
        """Shows a profile; called in the measurement's thread, if there was one."""

        def show() -> None:
            with self._drawing:
                again = self._profile is not None and self._profile.graph.fingerprint == profile.graph.fingerprint
                self._profile = profile
                self.badge.value = describe(profile)
                if not again:
                    self.table.selected = []
                self.batch.options = profile.batch_sizes
                self.batch.value = profile.batch_sizes[-1]
                self._fill()
                self._results.children = [side_by_side(self.view, self.batch), self.table, self.figure]
            self._update_start_button()

        self.guarded(show)()

    def _fill(self) -> None:
        with self._drawing:
            if self._profile is None:
                return
            batch = self.batch.value
            caption = (
                f"{self._profile.provenance} times at per-GPU batch {batch}; output and saved sizes are per sample. "
                f"Choose up to {MOST} layers for the figure."
            )
            self.table.fill(caption, HEADS, layer_rows(self._profile, batch))
            self._draw()

    def _draw(self) -> None:
        with self._drawing:
            if self._profile is None:
                return
            layers = self._profile.graph.layers
            self.set_trait("selected", tuple(layers[index].name for index in self.table.selected))
            if self.view.value == "graph":
                made = figures.graph(
                    self._profile.graph,
                    self._profile,
                    batch=self.batch.value,
                    width=self.page_width,
                    dark=self.dark,
                )
            else:
                made = figures.batch_curves(self._profile, self.table.selected, dark=self.dark)
            self.figure.draw(made)


def _devices(chosen: str) -> tuple[tuple[str, str], ...]:
    """Returns what the list of devices offers; an emulated one only if it was chosen."""
    offered = (*MEASUREMENTS, *ESTIMATES)
    if chosen in dict(offered).values():
        return offered
    find_kind(chosen, also=f"auto, {', '.join(GPUS)}")
    return (*MEASUREMENTS, (f"measured here: {chosen}", chosen), *ESTIMATES)


def describe(profile: Profile) -> str:
    """Returns HTML with a profile's provenance, device, date, method and caveats."""
    measured = profile.provenance == "measured"
    colour = MEASURED if measured else ESTIMATED
    badge = (
        f'<b class="dp-provenance" style="background:{colour};color:#fff;padding:1px 8px;border-radius:3px">'
        f"{profile.provenance}</b>"
    )
    return paragraph(
        f"{badge} {html.escape(str(profile))}<br>{html.escape(profile.date)}; {html.escape(profile.method)}"
        + bullet_list(f"caution: {sentence}" for sentence in profile.caveats())
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidValueError(
            f"per-GPU batch sizes are whole numbers with commas, got '{text}' (for example 1,2,4,8)"
        ) from None
