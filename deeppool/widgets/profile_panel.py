"""Layer times: measured here or estimated, layer by layer, batch size by batch size."""

import html
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.device.common import Precision
from deeppool.device.datasheet import GPUS
from deeppool.errors import InvalidValueError
from deeppool.figures.batch_curves import MOST
from deeppool.graph.layer import LayerGraph
from deeppool.graph.shapes import Shapes
from deeppool.profiling.table import Profile
from deeppool.runs.handle import RunHandle, start
from deeppool.widgets.layer_rows import HEADS, SUM, layer_rows
from deeppool.widgets.live_figure import become, settle
from deeppool.widgets.panel import Panel
from deeppool.widgets.prose import bullets, prose
from deeppool.widgets.run_row import RunRow, side_by_side
from deeppool.widgets.sortable_table import SortableTable

if TYPE_CHECKING:
    from torch import nn

    from deeppool.graph.capture.capture import CapturedModel
    from deeppool.profiling.store import Kept

HERE = (
    ("measured here: a GPU, else the CPU", "auto"),
    ("measured here: CPU", "cpu"),
    ("measured here: NVIDIA GPU", "cuda"),
)
ESTIMATES = tuple((f"estimated: {sheet.title}", name) for name, sheet in GPUS.items())
PRECISIONS: tuple[Precision, ...] = ("fp32", "tf32", "bf16", "fp16")
VIEWS = (("time over the batch size", "curves"), ("graph, coloured by time", "graph"))
WIDE = {"description_width": "initial"}
EMPTY = "No times yet. Press the button to measure, or choose a GPU's data sheet to estimate without that GPU."
MEASURED, ESTIMATED = "#0072B2", "#B05E00"
"""Behind white text; the words say it, too."""


class ProfilePanel(Panel):
    """Measures or estimates a model's layers, and shows their times.

        panel = dp.widgets.ProfilePanel(picker.captured, batch_sizes=(1, 2, 4, 8), output="vgg16.json")
        panel                      # start, cancel, resume; a sortable table; curves of the chosen layers
        panel.profile              # as soon as it is whole: waits for it, and starts it if nobody has

    A profile can be shown as it is: ``ProfilePanel(dp.find_profile("vgg16-cpu"))``.
    """

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
        """Lays out the controls; nothing is measured until the button is pressed or ``profile`` is asked for.

        Args:
            model: what :func:`deeppool.profile` takes, or a profile.
            input_shape: of one sample, when the model is not captured yet.
            device: ``auto``, ``cpu`` or ``cuda`` to measure; the name of a GPU (:func:`deeppool.estimate`) to estimate.
            batch_sizes: per-GPU batch sizes.
            precision: as of :func:`deeppool.profile`.
            output: file of the profile; with it, an interrupted measurement can be resumed.
        """
        shown = model if isinstance(model, Profile) else None
        self._model: Any = shown.origin if shown is not None else model
        self._input_shape = input_shape
        self._profile: Profile | None = None
        self._drawing = threading.RLock()
        self._make_controls(device, batch_sizes, precision, output)
        self.figure = go.FigureWidget()
        settle(self.figure)
        # Filled when there is something to draw: plotly does not find its width where nothing is seen.
        self._results = ipywidgets.VBox()
        self.badge = ipywidgets.HTML(prose(EMPTY))
        controls = [
            side_by_side(self.device, self.precision),
            side_by_side(self.batch_sizes, self.output),
            self.left,
            self.row,
        ]
        super().__init__([*(controls if self._model is not None else []), self.badge, self._results])
        self._connect()
        self._look_for_left_over()
        if shown is not None:
            self._take(shown)

    @property
    def profile(self) -> Profile:
        """The profile that is shown; waits for one under way, and starts one, as the button does, where there is none.

        Raises:
            DeeppoolError: it failed or was cancelled.
        """
        run = self.row.run
        if run is not None and (run.state == "running" or self._profile is None):
            return run.result()
        return self._profile if self._profile is not None else self.row.launch().result()

    @property
    def selected(self) -> tuple[str, ...]:
        """Names of the layers whose curves are drawn; none: the whole iteration's."""
        if self._profile is None:
            return ()
        return tuple(self._profile.graph.layers[index].name for index in self.table.selected)

    def static(self) -> go.Figure | None:
        """The whole iteration over the batch sizes, measured now if it was not."""
        return figures.batch_curves(self.profile, dark=self.dark)

    # -- controls ---------------------------------------------------------------------------------

    def _make_controls(
        self, device: str, batch_sizes: Sequence[int], precision: Precision, output: str | Path | None
    ) -> None:
        self.device = ipywidgets.Dropdown(
            description="times", options=(*HERE, *ESTIMATES), value=device, style=WIDE, layout={"width": "26em"}
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
            placeholder="a file, for example vgg16.json; needed to resume",
            continuous_update=False,
            style=WIDE,
            layout={"width": "28em"},
        )
        self.left = ipywidgets.HTML()
        self.row: RunRow[Profile] = RunRow("Measure", self._begin, self._take, self._end)
        self.view = ipywidgets.Dropdown(description="figure", options=VIEWS, style=WIDE, layout={"width": "20em"})
        self.batch = ipywidgets.Dropdown(
            description="times at per-GPU batch", options=[1], style=WIDE, layout={"width": "16em"}
        )
        self.table = SortableTable(sort_by=SUM, descending=True, most=MOST)

    def _connect(self) -> None:
        self.row.start.on_click(self.guarded(lambda _: self.row.launch()))
        self.row.cancel.on_click(self.guarded(lambda _: self.row.request_cancel()))
        for control in (self.device, self.precision, self.output):
            control.observe(self.guarded(lambda _: self._look_for_left_over()), "value")
        self.view.observe(self.guarded(lambda _: self._draw()), "value")
        self.batch.observe(self.guarded(lambda _: self._fill()), "value")
        self.table.observe(self.guarded(lambda _: self._draw()), "selected")
        self.on_theme(self._draw)

    @property
    def _estimating(self) -> bool:
        return self.device.value in GPUS

    def _look_for_left_over(self) -> None:
        """Says what the button will do: measure, go on from what an interrupted measurement kept, or estimate."""
        kept = None if self._estimating else self._left_over()
        self.row.start.description = "Estimate" if self._estimating else "Measure" if kept is None else "Resume"
        self.left.value = "" if kept is None else prose(f"Resumes from {html.escape(str(kept))}.")
        self.row.after_cancel = (
            "Nothing is kept: name a file to be able to resume." if not self.output.value.strip() else ""
        )

    def _left_over(self) -> "Kept | None":
        from deeppool.profiling.measure.profile import resumable

        if not self.output.value.strip():
            return None
        graph = getattr(self._model, "graph", None)  # of a captured model; others are known when they are captured
        return resumable(
            self.output.value.strip(),
            graph if isinstance(graph, LayerGraph) else None,
            device=self.device.value,
            precision=self.precision.value,
        )

    # -- measuring --------------------------------------------------------------------------------

    def _begin(self) -> RunHandle[Profile]:
        if self._model is None:
            raise InvalidValueError("this profile came without its model, so it cannot be measured again here")
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

    def _take(self, profile: Profile) -> None:
        """Shows a profile; in the thread of the measurement, where there was one."""

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
            self._look_for_left_over()

        self.guarded(show)()

    def _end(self, error: BaseException | None) -> None:
        """In the thread of a measurement that gave nothing."""
        self.guarded(self._look_for_left_over)()
        if error is not None:
            self.tell_problem(error)

    def _fill(self) -> None:
        with self._drawing:
            if self._profile is None:
                return
            batch = self.batch.value
            caption = (
                f"{self._profile.provenance} times at per-GPU batch {batch}; sizes but of parameters are per sample. "
                f"Choose up to {MOST} layers for the figure."
            )
            self.table.fill(caption, HEADS, layer_rows(self._profile, batch))
            self._draw()

    def _draw(self) -> None:
        with self._drawing:
            if self._profile is None:
                return
            if self.view.value == "graph":
                made = figures.graph(self._profile.graph, self._profile, batch=self.batch.value, dark=self.dark)
            else:
                made = figures.batch_curves(self._profile, self.table.selected, dark=self.dark)
            become(self.figure, made)


def describe(profile: Profile) -> str:
    """HTML: measured or estimated, of what, where, how, and what to be careful of."""
    measured = profile.provenance == "measured"
    colour = MEASURED if measured else ESTIMATED
    badge = (
        f'<b class="dp-provenance" style="background:{colour};color:#fff;padding:1px 8px;border-radius:3px">'
        f"{profile.provenance}</b>"
    )
    return prose(
        f"{badge} {html.escape(str(profile))}<br>{html.escape(profile.date)}; {html.escape(profile.method)}"
        + bullets(f"caution: {sentence}" for sentence in profile.caveats())
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InvalidValueError(
            f"per-GPU batch sizes are whole numbers with commas, got '{text}' (for example 1,2,4,8)"
        ) from None
