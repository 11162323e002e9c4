"""Fixtures that several parts of the suite share."""

import datetime
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Tests' tensors are small, and workers share the cores: a second thread would mostly wait, which takes a core, too.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from deeppool.device.cuda import cuda_problem
from deeppool.graph.models.torchvision_operators import define_missing_operators
from deeppool.processes.fork_server_client import fork_server
from tests.command import deeppool  # noqa: F401
from tests.network_namespaces import linked_namespaces
from tests.sampling import tonight

# What the collection imports stays until the end: collecting it as garbage is a third of the collection's time.
gc.disable()

# Before any test module imports torchvision.
define_missing_operators()

# A busy machine is slow, and no test is about the time of one example, nor about that of making it.
settings.register_profile("deeppool", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("deeppool")

CHECKOUT = Path(__file__).parents[1]
BROWSER = Path(__file__).with_name("browser")
LOOKED_AT = set[str]()
"""Modules of which the garbage collector knows that they stay."""
COSTS = {"slow": 100, "processes": 50}
"""Roughly, of a test with a mark, where others cost 1."""


@pytest.fixture(scope="module")
def in_the_checkout() -> Iterator[None]:
    """The current folder is the checkout and importable: ``examples.two_branch`` is found by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(CHECKOUT)
        patch.syspath_prepend(str(CHECKOUT))
        yield


@pytest.fixture
def network_namespaces() -> Iterator[list[str]]:
    """Two network namespaces with a link between them."""
    with linked_namespaces() as names:
        yield names


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


@pytest.fixture(autouse=True, scope="session")
def ranks_are_forked_with_what_test_modules_import(warnings_are_errors_in_started_processes: None) -> None:
    """A rank imports the test module whose functions it calls; most of what that imports is there already."""
    if (server := fork_server()) is not None:
        server.preload("tests.loaded_before_forks")


@pytest.fixture(autouse=True)
def cores_are_those_of_before() -> Iterator[None]:
    """A test that makes a rank or a background in this process does not leave it pinned."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests on a GPU need one."""
    if item.get_closest_marker("gpu") and (problem := cuda_problem()) is not None:
        pytest.skip(f"needs a CUDA device: {problem}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Stress tests have their turns, see ``make full``."""
    if item.get_closest_marker("stress") and tonight(item.nodeid, datetime.date.today()):
        item.add_marker("tonight")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers take whole files in this order: the browser tests, which are one for them, and the longest files."""
    if hasattr(config, "workerinput"):
        seconds: Counter[Path] = Counter()
        for item in items:
            seconds[item.path] += 1 + sum(cost for mark, cost in COSTS.items() if item.get_closest_marker(mark))
        items.sort(key=lambda item: (BROWSER not in item.path.parents, -seconds[item.path]))


def pytest_collection_finish() -> None:
    """Neither does the garbage collector look at all that was imported whenever a test makes some."""
    gc.freeze()
    gc.enable()
    LOOKED_AT.update(sys.modules)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Nor at what tests of a file imported for the first time: exports and profiles import half of it."""
    yield
    if (nextitem is None or nextitem.path != item.path) and len(sys.modules) > len(LOOKED_AT) + 100:
        gc.collect()
        gc.freeze()
        LOOKED_AT.update(sys.modules)


class BrowserTestsTogether(LoadFileScheduling):
    """All browser tests go to one worker, as if they were of one file: they share a server and a browser."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "tests/browser" if file.startswith("tests/browser/") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return BrowserTestsTogether(config, log) if config.getoption("dist") == "loadfile" else None
