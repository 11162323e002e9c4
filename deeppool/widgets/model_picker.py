"""Choose a model, capture it, and show its graph of layers."""

import functools
import html
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets
import plotly.graph_objects as go

from deeppool import figures
from deeppool.errors import CaptureError, InvalidValueError
from deeppool.figures.graph import TITLES, Quantity
from deeppool.graph.layer import Granularity, LayerGraph
from deeppool.graph.models.workloads import FAMILIES, find_workload, similar_names
from deeppool.graph.shapes import Shapes, format_shapes, parse_shapes
from deeppool.profiling.table import Profile
from deeppool.runs.handle import RunHandle, start
from deeppool.widgets.controls import WIDE
from deeppool.widgets.live_figure import LiveFigure
from deeppool.widgets.markup import bullet_list, paragraph
from deeppool.widgets.panel import Panel
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
EMPTY = "Pick a model and press Capture: its graph of layers appears here. Nothing is downloaded or trained."


class ModelPicker(Panel):
    """Chooses and captures a model.

        picker = dp.widgets.ModelPicker("vgg16", (3, 64, 64))
        picker                     # zoomable graph; the controls select other models
        picker.graph               # the captured graph; waits for the capture

    ``captured`` also holds the exported program, for ``dp.profile``. A given model is captured at once.
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
            model: argument or result of :func:`deeppool.capture`; None: the user chooses one.
            input_shape: shape of one sample; named models have a default.
            granularity: size of a layer; see :func:`deeppool.capture`.
            profile: profile of this graph, to colour it by time.
        """
        self._given = model if model is not None and not isinstance(model, str) else None
        self._profile = profile
        self._captured: CapturedModel | None = None
        self._drawing = threading.RLock()
        self._make_controls(granularity)
        self.figure = LiveFigure()
        # Filled when there is something to draw: plotly cannot determine its width while it is hidden.
        self._frame = ipywidgets.VBox(layout={"max_height": "640px", "overflow": "auto"})
        self.status = ipywidgets.HTML(paragraph(EMPTY))
        self.suggestions = ipywidgets.HBox(layout={"flex_flow": "row wrap"})
        """Buttons of models with a similar name; empty unless the chosen name is unknown."""
        super().__init__(
            [
                side_by_side(self.family, self.name),
                side_by_side(self.shape, self.dtype, self.granularity),
                self.row,
                self.suggestions,
                self.status,
                self.colour,
                self._frame,
            ],
            error_after=self.row,
        )
        self._set_controls(model, input_shape)
        self.family.observe(self.guarded(lambda _: self._list_names()), "value")
        self.name.observe(self.guarded(lambda _: self._show_own_shape()), "value")
        self.row.connect(self)
        self.colour.observe(self.guarded(lambda _: self._draw()), "value")
        self.on_theme(self._draw)
        self.on_width(self._draw)
        if model is not None:
            self.guarded(self._capture_given_model)()

    @property
    def captured(self) -> "CapturedModel":
        """The last captured model with its exported program; waits for a running capture.

        Raises:
            CaptureError: the capture failed, or no model was chosen yet.
        """
        run = self.row.run
        # A run that is done may not be drawn yet, which is what keeps its model for when a later one is cancelled.
        if run is not None and run.state != "cancelled":
            return run.result()
        if self._captured is None:
            raise CaptureError(
                "no model is captured yet (pick one and press Capture, or give one: ModelPicker('vgg16'))"
            )
        return self._captured

    @property
    def graph(self) -> LayerGraph:
        """The graph of layers of :attr:`captured`."""
        return self.captured.graph

    @property
    def profile(self) -> Profile | None:
        """The profile that colours the graph by time."""
        return self._profile

    @profile.setter
    def profile(self, profile: Profile | None) -> None:
        self._profile = profile
        self._update_colour_options()
        self.guarded(self._draw)()

    def static(self) -> go.Figure | None:
        """Returns the figure of the captured graph; None if no capture was requested."""
        if self.row.run is None and self._captured is None:
            return None
        return figures.graph(self.graph, self._matching_profile(), dark=self.dark)

    # -- controls ---------------------------------------------------------------------------------

    def _make_controls(self, granularity: Granularity) -> None:
        families = [*FAMILIES, OWN, *([GIVEN] if self._given is not None else [])]
        self.family = ipywidgets.Dropdown(description="family", options=families, style=WIDE)
        self.name = ipywidgets.Combobox(description="model", continuous_update=False, style=WIDE)
        self.shape = ipywidgets.Text(description="input shape of one sample", style=WIDE, layout={"width": "26em"})
        self.dtype = ipywidgets.Dropdown(description="dtype", options=DTYPES, style=WIDE, layout={"width": "16em"})
        self.granularity = ipywidgets.Dropdown(
            description="layers are", options=GRANULARITIES, value=granularity, style=WIDE, layout={"width": "28em"}
        )
        self.colour = ipywidgets.Dropdown(
            description="colour by", style=WIDE, layout={"display": "none", "width": "24em"}
        )
        self._update_colour_options()
        self.row: RunRow[CapturedModel] = RunRow("Capture", self._begin, self._show_captured)

    def _set_controls(self, model: object, input_shape: Shapes | None) -> None:
        """Sets the controls to the constructor's arguments."""
        if isinstance(model, str):
            known = (family for family, names in FAMILIES.items() if ":" not in model and model in names())
            self.family.value = OWN if ":" in model else next(known, self.family.value)
        elif model is not None:
            self.family.value = GIVEN
        self._list_names()
        if isinstance(model, str):
            self.name.value = model
        if isinstance(input_shape, Mapping):
            self.shape.value = ",".join(f"{name}={','.join(map(str, x))}" for name, x in input_shape.items())
        elif input_shape is not None:
            self.shape.value = ",".join(map(str, input_shape))
        self._show_own_shape()

    def _list_names(self) -> None:
        """Lists the models of the selected family; other names can still be typed."""
        family = self.family.value
        given = family == GIVEN
        self.name.disabled = given
        with self.name.hold_trait_notifications():
            self.name.options = FAMILIES[family]() if family in FAMILIES else []
            self.name.value = _model_name(self._given) if given else ""
        self.name.placeholder = "package.module:callable" if family == OWN else "type to search"

    def _show_own_shape(self) -> None:
        """Displays the default input shape of a named model; the user's own models are not imported for this."""
        name = self.name.value.strip()
        self._suggest(name)
        own = ""
        if name and ":" not in name and self.family.value != GIVEN:
            own = format_shapes(find_workload(name).inputs)
        self.shape.placeholder = f"{own} (default)" if own else "for example 3,224,224"

    def _suggest(self, name: str) -> None:
        """Offers the models that an unknown name may have been meant for."""
        meant = similar_names(name) if name and ":" not in name and self.family.value != GIVEN else []
        buttons = []
        for model in meant:
            button = ipywidgets.Button(description=model, tooltip=f"choose {model}", layout={"width": "auto"})
            self.on_click(button, functools.partial(self._choose, model))
            buttons.append(button)
        self.suggestions.children = (ipywidgets.Label("Did you mean"), *buttons) if buttons else ()

    def _choose(self, model: str) -> None:
        """Chooses a named model, with the family that lists it, and captures it."""
        self.family.value = next(family for family, names in FAMILIES.items() if model in names())
        self.name.value = model
        self.row.launch()

    def _update_colour_options(self) -> None:
        offered = [(title, key) for key, title in TITLES.items() if key != "time" or self._profile is not None]
        self.colour.options = offered
        self.colour.value = offered[0][1]

    # -- capturing --------------------------------------------------------------------------------

    def _capture_given_model(self) -> None:
        from deeppool.graph.capture.capture import CapturedModel

        if isinstance(self._given, CapturedModel):
            self._show_captured(self._given)
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

    def _show_captured(self, captured: "CapturedModel") -> None:
        """Shows a captured model; called in the capture's thread."""
        self._captured = captured
        self.guarded(self._draw)()

    def _draw(self) -> None:
        from deeppool.graph.capture.coverage import coverage

        with self._drawing:
            if self._captured is None:
                return
            profile = self._matching_profile()
            colour: Quantity = self.colour.value if profile is not None or self.colour.value != "time" else "parameters"
            drawn = figures.graph(
                self._captured.graph, profile, colour_by=colour, width=self.page_width, dark=self.dark
            )
            self.figure.draw(drawn)
            self.status.value = describe(coverage(self._captured), self._captured.graph.model, self._notes())
            self.colour.layout.display = None
            self._frame.children = [self.figure]

    def _notes(self) -> list[str]:
        differs = self._profile is not None and self._matching_profile() is None
        return ["the profile belongs to another graph, so no times are shown"] if differs else []

    def _matching_profile(self) -> Profile | None:
        """Returns the profile if it belongs to the displayed graph, else None."""
        same = (
            self._profile is not None
            and self._captured is not None
            and self._profile.graph.fingerprint == self._captured.graph.fingerprint
        )
        return self._profile if same else None


def describe(found: "Coverage", model: str, notes: Sequence[str] = ()) -> str:
    """Returns HTML with the coverage of a model by its graph, a collapsed list of operators, and warnings."""
    counts = ", ".join(f"{name} {count}" for name, count in found.operators)
    return paragraph(
        f"<b>{html.escape(model)}</b>: {html.escape(str(found))}"
        f"<details><summary>operators</summary>{html.escape(counts)}</details>"
        + bullet_list([*found.warnings, *notes]),
        "dp-coverage",
    )


def _model_name(model: Any) -> str:
    graph = getattr(model, "graph", None)
    return graph.model if isinstance(graph, LayerGraph) else type(model).__name__
