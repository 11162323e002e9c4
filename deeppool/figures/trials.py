"""Final loss of trials of one job under different configurations."""

import plotly.graph_objects as go

from deeppool.base.arguments import typed
from deeppool.figures import theme
from deeppool.figures.formatting import escape, shorten
from deeppool.records.trials_record import TrialsRecord
from deeppool.units import format_rate


@typed
def trials(record: TrialsRecord, *, dark: bool = False) -> go.Figure:
    """Draws the final loss of each configuration, the best first; those that ended early have none.

    Args:
        record: trials of one job.
        dark: whether the page is dark.

    Raises:
        InvalidValueError: something else.
    """
    results = sorted(record.results, key=lambda x: (x.final_loss is None, x.final_loss or 0.0))
    labels = [", ".join(f"{name} {value}" for name, value in result.configuration.items()) for result in results]
    rows = list(range(len(results)))
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=rows,
            x=[result.final_loss or 0.0 for result in results],
            marker_color=[theme.GREEN if result is record.best else theme.neutral(dark=dark) for result in results],
            text=[
                escape(result.ended) if result.final_loss is None else format_rate(result.final_loss, 4)
                for result in results
            ],
            # Inside a bar of no length, plotly shows no text.
            textposition=["outside" if result.final_loss is None else "auto" for result in results],
            hovertext=[
                f"{escape(label)}<br>{result.steps} steps, {escape(result.ended)}"
                for label, result in zip(labels, results, strict=True)
            ],
            hoverinfo="text",
        )
    )
    figure.update_xaxes(title_text="final loss", rangemode="tozero")
    figure.update_yaxes(theme.named_rows([escape(shorten(label, 44)) for label in labels]))
    return theme.apply_theme(
        figure,
        title=f"{len(rows)} configurations, {record.steps} steps at batch {record.batch}",
        subtitle="<b>measured</b>; the best is green",
        plot_height=max(120, 30 * len(rows)),
        dark=dark,
    )
