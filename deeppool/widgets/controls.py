"""Labelled sliders and drop-down lists that all widgets use."""

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets

LABEL = {"description_width": "13em"}
"""Style: labels of one column end where the controls begin."""

WIDE = {"description_width": "initial"}
"""Style: labels as wide as their texts."""
CONTROL_WIDTH = "30em"
"""Least width of a labelled slider that is easy to move."""


def steps(label: str, options: Mapping[str, Any], value: Any) -> ipywidgets.SelectionSlider:
    """Returns a slider over named values that reports every value it passes.

    Args:
        label: label, with the unit.
        options: text → value, in order.
        value: initial value, one of the options.
    """
    return ipywidgets.SelectionSlider(
        description=label,
        options=list(options.items()),
        value=value,
        continuous_update=True,
        style=LABEL,
        layout=_WIDE,
    )


def choice(label: str, options: Mapping[str, Any] | Sequence[str], value: Any) -> ipywidgets.Dropdown:
    """Returns a drop-down list.

    Args:
        label: label, with the unit.
        options: texts, or text → value.
        value: initial value, one of the options.
    """
    listed = list(options.items()) if isinstance(options, Mapping) else list(options)
    return ipywidgets.Dropdown(description=label, options=listed, value=value, style=LABEL, layout=_WIDE)


def grid(*controls: ipywidgets.Widget) -> ipywidgets.GridBox:
    """Lays out controls in columns of equal width, as many as there is room for: on a narrow page one."""
    columns = f"repeat(auto-fit, minmax(min(100%, {CONTROL_WIDTH}), 1fr))"
    layout = ipywidgets.Layout(grid_template_columns=columns, grid_gap="2px 16px")
    return ipywidgets.GridBox(controls, layout=layout)


def powers(most: int, value: int) -> dict[str, int]:
    """Returns powers of two up to ``most``, plus ``value``, as text → number."""
    found = {2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most} | {value}
    return {f"{count:,}": count for count in sorted(found)}


_WIDE = {"width": "auto"}
