"""Both emulated devices: in the machine's time and, of a data sheet, in virtual time."""

import pytest


@pytest.fixture(params=["emulated", "emulated:h200"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param
