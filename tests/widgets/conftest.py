"""What all tests of widgets share."""

from collections.abc import Iterator

import pytest
from ipywidgets.widgets import widget


@pytest.fixture(autouse=True)
def widgets_end_with_their_test() -> Iterator[None]:
    """ipywidgets keeps every widget, and so its models and plans, until it is closed."""
    before = set(widget._instances)
    yield
    for identity in set(widget._instances) - before:
        # One that is closed may close others.
        if identity in widget._instances:
            widget._instances[identity].close()
