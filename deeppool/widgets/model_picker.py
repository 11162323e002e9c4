"""Any model as a graph of layers: pick it, capture it, look at it."""

import html
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.figures.graph import TITLES, Quantity
from deeppool.graph.layer import Granularity, LayerGraph
from deeppool.graph.models.workloads import FAMILIES, find_workload
from deeppool.graph.shapes import Shapes, format_shapes, parse_shapes
from deeppool.profiling.table import Profile
from deeppool.runs.handle import RunHandle, start
from deeppool.widgets.live_figure import become, settle
from deeppool.widgets.panel import Panel
from deeppool.widgets.prose import bullets, prose
from deeppool.widgets.run_row import RunRow, side_by_side

if TYPE_CHECKING:
    from torch import nn

    from deeppool.graph.capture.capture import CapturedModel
    from deeppool.graph.capture.coverage import Coverage

OWN = "your own (package.module:callable)"
GIVEN = "the object given here"
GRANULARITIES: tuple[tuple[str, Granularity], ...] = (
    ("modules, each with what follows it", "module"),
    ("operators", "operator"),
    ("blocks of modules", "block"),
)
DTYPES = (("the model's own", ""), ("float32", "float32"), ("int64 (tokens)", "int64"))
WIDE = {"description_width": "initial"}
EMPTY = "Pick a model and press Capture: its graph of layers appears here. Nothing is downloaded or trained."


class ModelPicker(Panel):
    """Chooses and captures a model.

        picker = dp.widgets.ModelPicker("vgg16", (3, 64, 64))
        picker                     # the graph, zoomable; other models by its controls
        picker.graph               # what was captured; waits for it

    ``captured`` is the same with the program, for ``dp.profile``. A model that is given is captured at once.
    """

    def __init__(
        self,
        model: "nn.Module | CapturedModel | str | None" = None,
        input_shape: Shapes | None = None,
        *,
        granularity: Granularity = "module",
        profile: Profile | None = None,
    ) -> None:
        """Lays out the controls.

        Args:
            model: what :func:`deeppool.capture` takes, or what it gave; None: the user picks one.
            input_shape: of one sample; named models have their own.
            granularity: what is one layer; see :func:`deeppool.capture`.
            profile: of this graph, to colour it by time.
        """
        self._given = model if model is not None and not isinstance(model, str) else None
        self._profile = profile
        self._captured: CapturedModel | None = None
        self._drawing = threading.RLock()
        self._make_controls(granularity)
        self.figure = go.FigureWidget()
        settle(self.figure)
        # Filled when there is something to draw: plotly does not find its width where nothing is seen.
        self._frame = ipywidgets.VBox(layout={"max_height": "640px", "overflow": "auto"})
        self.told = ipywidgets.HTML(prose(EMPTY))
        super().__init__(
            [
                side_by_side(self.family, self.name),
                side_by_side(self.shape, self.dtype, self.granularity),
                self.row,
                self.told,
                self.colour,
                self._frame,
            ]
        )
        self._choose(model, input_shape)
        self.family.observe(self.guarded(lambda _: self._list_names()), "value")
        self.name.observe(self.guarded(lambda _: self._show_own_shape()), "value")
        self.row.start.on_click(self.guarded(lambda _: self.row.launch()))
        self.row.cancel.on_click(self.guarded(lambda _: self.row.request_cancel()))
        self.colour.observe(self.guarded(lambda _: self._draw()), "value")
        self.on_theme(self._draw)
        if model is not None:
            self.guarded(self._begin_at_once)()

    @property
    def captured(self) -> "CapturedModel":
        """The model that was captured last, as a program, too; waits for a capture under way.

        Raises:
            CaptureError: it could not be captured, or nothing was picked yet.
        """
        run = self.row.run
        if run is not None and run.state in ("running", "failed"):
            return run.result()
        if self._captured is None:
            raise CaptureError(
                "no model is captured yet (pick one and press Capture, or give one: ModelPicker('vgg16'))"
            )
        return self._captured

    @property
    def graph(self) -> LayerGraph:
        """As :attr:`captured`, the graph of layers alone."""
        return self.captured.graph

    @property
    def profile(self) -> Profile | None:
        """Whose times colour the graph."""
        return self._profile

    @profile.setter
    def profile(self, profile: Profile | None) -> None:
        self._profile = profile
        self._offer_colours()
        self.guarded(self._draw)()

    def static(self) -> go.Figure | None:
        """The graph that was asked for."""
        if self.row.run is None and self._captured is None:
            return None
        return figures.graph(self.graph, self._fitting_profile(), dark=self.dark)

    # -- controls ---------------------------------------------------------------------------------

    def _make_controls(self, granularity: Granularity) -> None:
        families = [*FAMILIES, OWN, *([GIVEN] if self._given is not None else [])]
        self.family = ipywidgets.Dropdown(description="family", options=families, style=WIDE)
        self.name = ipywidgets.Combobox(description="model", continuous_update=False, style=WIDE)
        self.shape = ipywidgets.Text(description="input shape of one sample", style=WIDE, layout={"width": "26em"})
        self.dtype = ipywidgets.Dropdown(description="dtype", options=DTYPES, style=WIDE, layout={"width": "16em"})
        self.granularity = ipywidgets.Dropdown(
            description="layers are", options=GRANULARITIES, value=granularity, style=WIDE, layout={"width": "25em"}
        )
        self.colour = ipywidgets.Dropdown(
            description="colour by", style=WIDE, layout={"display": "none", "width": "24em"}
        )
        self._offer_colours()
        self.row: RunRow[CapturedModel] = RunRow("Capture", self._begin, self._take, self._end)

    def _choose(self, model: object, input_shape: Shapes | None) -> None:
        """Sets the controls to what the constructor was given."""
        if isinstance(model, str):
            known = (family for family, names in FAMILIES.items() if ":" not in model and model in names())
            self.family.value = OWN if ":" in model else next(known, self.family.value)
        elif model is not None:
            self.family.value = GIVEN
        self._list_names()
        if isinstance(model, str):
            self.name.value = model
        if isinstance(input_shape, tuple | list):
            self.shape.value = ",".join(map(str, input_shape))
        elif input_shape is not None:
            self.shape.value = ",".join(f"{name}={','.join(map(str, x))}" for name, x in input_shape.items())
        self._show_own_shape()

    def _list_names(self) -> None:
        """Offers the names of a family; those of other families can still be typed."""
        family = self.family.value
        given = family == GIVEN
        self.name.disabled = given
        with self.name.hold_trait_notifications():
            self.name.options = FAMILIES[family]() if family in FAMILIES else []
            self.name.value = _model_name(self._given) if given else ""
        self.name.placeholder = "package.module:callable" if family == OWN else "type to search"

    def _show_own_shape(self) -> None:
        """The shape that a named model has unless another is given; the user's own is not imported for that."""
        name = self.name.value.strip()
        own = ""
        if name and ":" not in name and self.family.value != GIVEN:
            own = format_shapes(find_workload(name).inputs)
        self.shape.placeholder = f"{own} (its own)" if own else "for example 3,224,224"

    def _offer_colours(self) -> None:
        offered = [(title, key) for key, title in TITLES.items() if key != "time" or self._profile is not None]
        self.colour.options = offered
        self.colour.value = offered[0][1]

    # -- capturing --------------------------------------------------------------------------------

    def _begin_at_once(self) -> None:
        from deeppool.graph.capture.capture import CapturedModel

        if isinstance(self._given, CapturedModel):
            self._take(self._given)
        else:
            self.row.launch()

    def _begin(self) -> "RunHandle[CapturedModel]":
        import torch

        from deeppool.graph.capture.capture import CapturedModel, capture

        model: Any = self._given
        if self.family.value != GIVEN:
            model = self.name.value.strip()
            if not model:
                raise InvalidValueError("no model is chosen (type or pick a name, then press Capture)")
        elif isinstance(model, CapturedModel):
            model = model.source
        return start(
            capture,
            model,
            parse_shapes(self.shape.value),
            input_dtype=getattr(torch, self.dtype.value) if self.dtype.value else None,
            granularity=self.granularity.value,
        )

    def _end(self, error: BaseException | None) -> None:
        if error is not None:
            self.tell_problem(error)

    def _take(self, captured: "CapturedModel") -> None:
        """In the thread of the capture."""
        self._captured = captured
        self.guarded(self._draw)()

    def _draw(self) -> None:
        from deeppool.graph.capture.coverage import coverage

        with self._drawing:
            if self._captured is None:
                return
            profile = self._fitting_profile()
            colour: Quantity = self.colour.value if profile is not None or self.colour.value != "time" else "parameters"
            become(self.figure, figures.graph(self._captured.graph, profile, colour_by=colour, dark=self.dark))
            self.told.value = describe(coverage(self._captured), self._captured.graph.model, self._notes())
            self.colour.layout.display = None
            self._frame.children = [self.figure]

    def _notes(self) -> list[str]:
        differs = self._profile is not None and self._fitting_profile() is None
        return ["the profile is of another graph, so no times are shown"] if differs else []

    def _fitting_profile(self) -> Profile | None:
        """The profile, where it is of the graph that is shown."""
        same = (
            self._profile is not None
            and self._captured is not None
            and self._profile.graph.fingerprint == self._captured.graph.fingerprint
        )
        return self._profile if same else None


def describe(found: "Coverage", model: str, notes: Sequence[str] = ()) -> str:
    """HTML: what a graph holds of its model, its operators to unfold, and what to be careful of."""
    counts = ", ".join(f"{name} {count}" for name, count in found.operators)
    return prose(
        f"<b>{html.escape(model)}</b>: {html.escape(str(found))}"
        f"<details><summary>operators</summary>{html.escape(counts)}</details>" + bullets([*found.warnings, *notes]),
        "dp-coverage",
    )


def _model_name(model: Any) -> str:
    graph = getattr(model, "graph", None)
    return graph.model if isinstance(graph, LayerGraph) else type(model).__name__
