"""environment.yml says in conda's words what pyproject.toml says in pip's: checked without a channel."""

import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rattler import MatchSpec, Version, VersionSpec

ROOT = Path(__file__).parents[2]
CONDA_NAMES = {"torch": "pytorch", "lazy-loader": "lazy_loader"}
"""conda's names where they are not pip's."""

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
SPECS = [spec for spec in ENVIRONMENT["dependencies"] if isinstance(spec, str)]
REQUIREMENTS = [Requirement(text) for text in PROJECT["dependencies"]]
PINS = {
    Requirement(line).name: Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
}


def bounds(spec: str) -> SpecifierSet:
    """The version part of a conda spec, read as pip would: for our simple bounds the two agree."""
    return SpecifierSet(str(MatchSpec(spec, strict=True).version or ""))


def name(spec: str) -> str:
    return MatchSpec(spec, strict=True).name.normalized


def conda_accepts(spec: str, version: str) -> bool:
    """What conda's own reading of the bounds says of a version."""
    return VersionSpec(str(MatchSpec(spec, strict=True).version)).matches(Version(version))


def spec_of(requirement: Requirement) -> str:
    wanted = CONDA_NAMES.get(requirement.name, requirement.name)
    return next((spec for spec in SPECS if name(spec) == wanted), f"{wanted} is not in environment.yml")


def test_the_environment_has_a_name_channels_and_ends_with_this_checkout() -> None:
    assert ENVIRONMENT["name"] == PROJECT["name"]
    assert ENVIRONMENT["channels"] == ["conda-forge"]
    assert ENVIRONMENT["dependencies"][-1] == {"pip": ["-e ."]}
    assert "pip" in SPECS


def test_it_names_every_dependency_once_and_nothing_else() -> None:
    wanted = {CONDA_NAMES.get(requirement.name, requirement.name) for requirement in REQUIREMENTS}
    assert sorted(name(spec) for spec in SPECS) == sorted({"python", "pip"} | wanted)


def test_it_asks_for_the_same_python() -> None:
    python = next(spec for spec in SPECS if name(spec) == "python")
    assert bounds(python) == SpecifierSet(PROJECT["requires-python"])


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_its_bounds_are_those_of_pyproject(requirement: Requirement) -> None:
    assert bounds(spec_of(requirement)) == requirement.specifier


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_the_installed_version_satisfies_both_files(requirement: Requirement) -> None:
    installed = metadata.version(requirement.name)
    assert requirement.specifier.contains(installed, prereleases=True)
    # A build label as in 2.13.0+cpu is pip's; conda has it in the build string.
    assert conda_accepts(spec_of(requirement), installed.split("+")[0])


EXTRAS = [Requirement(text) for extra in PROJECT["optional-dependencies"].values() for text in extra]


@pytest.mark.parametrize("requirement", REQUIREMENTS + EXTRAS, ids=str)
def test_constraints_pin_a_version_inside_the_range(requirement: Requirement) -> None:
    (pin,) = PINS[requirement.name].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version)
