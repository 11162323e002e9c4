"""Ray's own processes warn, so warnings are no errors in what these tests start."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def warnings_of_ray() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "")
        yield
