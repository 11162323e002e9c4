"""Labelled sliders and drop-down lists that all widgets use."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ipywidgets

LABEL = {"description_width": "13em"}
"""Style: labels of one column end where the controls begin."""

WIDE = {"description_width": "initial"}
"""Style: labels as wide as their texts."""
CONTROL_WIDTH = "30em"
"""Least width of a labelled slider that is easy to move."""


def steps(
    label: str, values: Iterable[float], value: float, text: Callable[[float], str] = "{:,}".format
) -> ipywidgets.SelectionSlider:
    """Returns a slider over numbers that reports every value it passes.

    Args:
        label: label, with the unit.
        values: the numbers, beside the initial value.
        value: initial value.
        text: writes a number.
    """
    return ipywidgets.SelectionSlider(
        description=label,
        tooltip=label,
        options=[(text(each), each) for each in sorted({*values, value})],
        value=value,
        continuous_update=True,
        style=LABEL,
        layout={"width": "auto"},
    )


def choice(label: str, options: Mapping[str, Any] | Sequence[str], value: Any) -> ipywidgets.Dropdown:
    """Returns a drop-down list.

    Args:
        label: label, with the unit.
        options: texts, or text → value.
        value: initial value, one of the options.
    """
    return ipywidgets.Dropdown(description=label, options=options, value=value, style=LABEL, layout={"width": "auto"})


def grid(*controls: ipywidgets.Widget) -> ipywidgets.GridBox:
    """Lays out controls in columns of equal width, as many as there is room for: on a narrow page one."""
    columns = f"repeat(auto-fit, minmax(min(100%, {CONTROL_WIDTH}), 1fr))"
    layout = ipywidgets.Layout(grid_template_columns=columns, grid_gap="2px 16px")
    return ipywidgets.GridBox(controls, layout=layout)
