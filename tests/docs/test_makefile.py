"""Targets of the Makefile install what they need once, also where pip has been typed by hand."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_guides import CHECKOUT

INSTALLED = {"lab": "deeppool", "demo": "deeppool", "check": "pytest", "docs": "mkdocs"}
"""Targets, and the program without which they install first."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout into whose .venv pip has installed everything."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(CHECKOUT / name, tmp_path)
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", *INSTALLED.values()):
        (programs / name).touch()
    return tmp_path


def steps_of(target: str, folder: Path) -> str:
    """What ``make`` would run."""
    done = subprocess.run(["make", "-n", target], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("target", INSTALLED)
def test_what_pip_has_installed_is_not_installed_again(target: str, checkout: Path) -> None:
    assert "pip install" not in steps_of(target, checkout)


@pytest.mark.parametrize(("target", "program"), INSTALLED.items())
def test_what_is_missing_or_older_than_its_versions_is_installed(target: str, program: str, checkout: Path) -> None:
    path = checkout / ".venv" / "bin" / program
    path.unlink()
    assert "pip install" in steps_of(target, checkout)
    path.touch()
    newer = path.stat().st_mtime + 60
    os.utime(checkout / "constraints.txt", (newer, newer))
    assert "pip install" in steps_of(target, checkout)


def test_without_a_venv_there_will_be_one(checkout: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    steps = steps_of("lab", checkout)
    assert steps.index("-m venv .venv") < steps.index("pip install") < steps.index("deeppool lab")
