"""Parameters of models, and their layers by kind."""

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from deeppool.base.arguments import typed
from deeppool.errors import InvalidValueError
from deeppool.evaluation.figures.printed import printed_marks
from deeppool.figures import theme
from deeppool.figures.formatting import escape
from deeppool.graph.layer import Layer, LayerGraph

KINDS = {"convolution": theme.SKY_BLUE, "dense": theme.BLUE, "attention": theme.PURPLE, "other": theme.GREEN}

_WORDS = {"convolution": ("conv",), "attention": ("attention",), "dense": ("linear", "matmul", "bmm", "addmm")}
"""Parts of operators' names, the heaviest first."""


@typed
def workloads(*graphs: LayerGraph) -> go.Figure:
    """Draws megabytes of parameters and the number of layers of each kind, a row per model, and what the paper prints.

    Args:
        graphs: captured models.

    Raises:
        InvalidValueError: no graph.
    """
    if not graphs:
        raise InvalidValueError("workloads got no graph to draw (capture a model: dp.capture)")
    figure = make_subplots(
        cols=2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=["parameters by kind", "layers by kind"]
    )
    names = [escape(graph.model) for graph in graphs]
    for kind, colour in KINDS.items():
        own = [[layer for layer in graph.layers if kind_of(layer) == kind] for graph in graphs]
        if not any(own):
            continue
        look = {"name": kind, "legendgroup": kind, "marker": {"color": colour}, "orientation": "h", "y": names}
        sizes = [sum(layer.parameter_bytes for layer in layers) / 1e6 for layers in own]
        figure.add_bar(x=sizes, row=1, col=1, hovertemplate="%{y}: %{x:.1f} MB<extra></extra>", **look)
        counts = list(map(len, own))
        figure.add_bar(
            x=counts, row=1, col=2, showlegend=False, hovertemplate="%{y}: %{x} layers<extra></extra>", **look
        )
    for column, (counted, scale) in enumerate((("parameters", 4.0), ("layers", 1.0)), 1):
        places = {f"{graph.model}, {counted}": escape(graph.model) for graph in graphs}
        for marks in printed_marks("table1", places, scale=scale, horizontal=True):
            figure.add_trace(marks.update(showlegend=column == 1), row=1, col=column)
    figure.update_xaxes(title_text="parameters (MB)", row=1, col=1)
    figure.update_xaxes(title_text="layers", row=1, col=2)
    figure.update_yaxes(autorange="reversed")
    theme.apply_theme(
        figure,
        title="What the models consist of",
        subtitle="counted on the captured graphs",
        plot_height=60 + 48 * len(graphs),
        heading_height=24,
    )
    return figure.update_layout(barmode="stack")


def kind_of(layer: Layer) -> str:
    """Returns the kind of a layer: that of its most expensive operator."""
    for kind, words in (
        ("convolution", ("conv",)),
        ("attention", ("attention",)),
        ("dense", ("linear", "matmul", "bmm", "addmm")),
    ):
        if any(word in operator for operator in layer.operators for word in words):
            return kind
    return "other"
