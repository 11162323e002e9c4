"""Shipped profiles: lookup by name, the list, and errors for unknown names."""

from dataclasses import replace

import pytest

from deeppool.base import serialization
from deeppool.errors import DocumentError
from deeppool.profiling import shipped
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.shipped import find_profile, list_profiles
from tests.strategies import make_graph, profile_from_times

SMALL = replace(
    profile_from_times(make_graph([()]), [lambda batch: 1e-3 * batch], batch_sizes=(1, 2)),
    checks=(IterationCheck(1, 1.0, 1.0, 0.0, 5), IterationCheck(2, 0.97, 1.0, 0.0, 5)),
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two shipped profiles."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shipped").mkdir()
    for name in ("small-cpu", "other-cpu"):
        serialization.write(SMALL, tmp_path / "shipped" / f"{name}.json")
    return tmp_path


def test_a_shipped_profile_is_found_by_name(folder):
    assert find_profile("small-cpu") == SMALL


def test_a_file_comes_before_a_name(folder):
    mine = replace(SMALL, device_name="mine")
    serialization.write(mine, folder / "small-cpu")
    assert find_profile("small-cpu") == find_profile(folder / "small-cpu") == mine


def test_the_list_states_the_measurements_and_their_accuracy(folder):
    listed = list_profiles()
    assert [entry.name for entry in listed.profiles] == ["other-cpu", "small-cpu"]
    assert listed.profiles[1].deviation == pytest.approx(-0.03)
    assert str(listed).splitlines()[1] == (
        "small-cpu: drawn on 3x8x8, batch 1, 2; drawn (fp32, 1 thread), 2026-01-01, "
        "layers within 3.0 % of the iteration"
    )


def test_an_unknown_profile_raises_with_the_known_names(folder):
    phrase = "no profile 'tiny': neither a file nor one of other-cpu, small-cpu .make one: deeppool profile MODEL"
    with pytest.raises(DocumentError, match=phrase):
        find_profile("tiny")


@pytest.mark.parametrize("missing", ["tiny.json", "folder/tiny"])
def test_a_missing_path_raises_as_a_file_error(folder, missing):
    with pytest.raises(DocumentError, match=f"cannot read {missing}: No such file"):
        find_profile(missing)


def test_an_empty_folder_of_profiles_is_not_an_error(folder, monkeypatch):
    monkeypatch.setattr(shipped, "FOLDER", folder / "absent")
    assert str(list_profiles()).startswith("no profiles are shipped")


@pytest.mark.parametrize("path", sorted(shipped.FOLDER.glob("*.json")), ids=lambda path: path.stem)
def test_shipped_profiles_are_small_measured_and_within_their_bound(path):
    profile = find_profile(path.stem)
    device = {"cuda": "h200"}.get(profile.device, profile.device)
    assert path.stem == f"{profile.graph.model}-{device}"
    assert profile.provenance == "measured"
    assert path.stat().st_size < 200_000
    assert len(profile.checks) == len(profile.batch_sizes)
    cautions = profile.caveats()
    if path.stem == "resnet50-h200":
        (caution,) = cautions
        assert "add up to 5.9 % more than the whole iteration at batch 1, beyond the bound of 5 %" in caution
    else:
        assert cautions == ()
