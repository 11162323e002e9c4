"""A JupyterLab in a headless Chromium for the tests of this folder; each test has its own notebooks and kernels."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.lab import Lab, opened
from tests.browser.lab_command import LabCommand, edited_copy
from tests.browser.notebook import Notebook
from tests.browser.server import chromium

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are browser tests."""
    for item in items:
        if HERE in item.path.parents:
            for mark in (pytest.mark.browser, pytest.mark.slow, pytest.mark.processes):
                item.add_marker(mark)
            item.add_marker(pytest.mark.skipif(chromium() is None, reason="there is no chromium"))


# Playwright's loop occupies the thread: elsewhere, tests run loops of their own.
@pytest.fixture(scope="package")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One server and one browser for all."""
    with opened(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="package")
def lab_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabCommand]:
    """The product's server, for all."""
    with LabCommand(tmp_path_factory.mktemp("lab-command") / "jupyter") as server:
        yield server
    assert not server.ready()


@pytest.fixture(scope="package")
def users_notebook(laboratory: Lab, lab_command: LabCommand) -> Iterator[Notebook]:
    """A copy on the product's server, after it has run, for all: its page stays as it is."""
    users = Lab(lab_command, laboratory.browser)
    yield users.open_file(edited_copy(lab_command.root), seconds=300)
    users.end()


@pytest.fixture
def lab(laboratory: Lab) -> Iterator[Lab]:
    """``lab.open([cell, cell])`` runs a notebook; afterwards nothing of it is left, and no page had a complaint."""
    yield laboratory
    laboratory.end()
