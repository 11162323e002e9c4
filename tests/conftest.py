"""Fixtures that several parts of the suite share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def in_the_checkout() -> Iterator[None]:
    """The current folder is the checkout and importable: ``examples.two_branch`` is found by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(CHECKOUT)
        patch.syspath_prepend(str(CHECKOUT))
        yield
