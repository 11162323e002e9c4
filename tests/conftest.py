"""Fixtures that several parts of the suite share."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from deeppool.graph.models.torchvision_operators import define_missing_operators

# Before any test module imports torchvision.
define_missing_operators()

CHECKOUT = Path(__file__).parents[1]
BROWSER = Path(__file__).with_name("browser")
COSTS = {"slow": 100, "processes": 50}
"""Roughly, of a test with a mark, where others cost 1."""


@pytest.fixture(scope="module")
def in_the_checkout() -> Iterator[None]:
    """The current folder is the checkout and importable: ``examples.two_branch`` is found by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(CHECKOUT)
        patch.syspath_prepend(str(CHECKOUT))
        yield


STARTED_WARNINGS = "error,ignore::ResourceWarning,ignore::PendingDeprecationWarning"
"""Warnings are errors in started processes, too, but for files that an exit closes and for ipykernel's shutdown."""


@pytest.fixture(autouse=True, scope="session")
def warnings_are_errors_in_started_processes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONWARNINGS", STARTED_WARNINGS)
        yield


@pytest.fixture(autouse=True, scope="session")
def runs_are_told_of_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests' runs are not among the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: browser tests share a server, and the longest files start first."""
    if hasattr(config, "workerinput"):
        seconds: Counter[Path] = Counter()
        for item in items:
            seconds[item.path] += 1 + sum(cost for mark, cost in COSTS.items() if item.get_closest_marker(mark))
        items.sort(key=lambda item: (BROWSER not in item.path.parents, -seconds[item.path]))
