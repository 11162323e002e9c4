"""Ray's own processes warn, so warnings are no errors in what these tests start."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="package")
def warnings_of_ray(warnings_are_errors_in_started_processes: None) -> Iterator[str]:
    """Yields the setting of all other tests."""
    before = os.environ["PYTHONWARNINGS"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", "")
        yield before


@pytest.fixture
def warnings_of_other_tests(warnings_of_ray: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that this process starts are forked from the same one as in all other tests."""
    monkeypatch.setenv("PYTHONWARNINGS", warnings_of_ray)
