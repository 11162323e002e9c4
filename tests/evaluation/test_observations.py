"""Observations from a notebook's output folder."""

from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool.errors import DocumentError
from deeppool.evaluation import Findings
from deeppool.evaluation.observations import observe
from deeppool.profiling.iteration_check import IterationCheck
from tests.figures.records import run_of, two_layer_plan
from tests.strategies import make_graph, profile_from_times


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An evaluation, a measured profile, an estimated one, a run, a plan, and files that are no records."""
    findings = Findings("fig5", "Layers", device="here")
    findings.number("speed-up", 1.3, "x", "simulated")
    findings.number("search time", 0.2, "s", "measured", spread=0.01)
    findings.check("it gains", True)
    findings.save(tmp_path)
    graph = make_graph([(), (0,)])
    profile = profile_from_times(graph, [lambda batch: 1e-3 * batch, lambda batch: 2e-3 * batch], batch_sizes=(1, 2))
    check = IterationCheck(batch=2, layers=6e-3, iteration=6e-3, spread=0.1, runs=5, peak_memory=None)
    dp.save(replace(profile, provenance="measured", checks=(check,)), tmp_path / "mine.json")
    dp.save(profile, tmp_path / "estimate.json")
    dp.save(run_of(), tmp_path / "run.json")
    dp.save(two_layer_plan(), tmp_path / "plan.json")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "half.json").write_text("{")
    return tmp_path


def test_numbers_come_from_the_evaluation_the_layers_of_measured_profiles_and_runs(folder: Path) -> None:
    observations, checks = observe(folder)
    values = {each.name: each.value for each in observations}
    graph = dp.load(folder / "mine.json").graph
    run = dp.load(folder / "run.json")
    first, second = (layer.name for layer in graph.layers)
    assert values == pytest.approx(
        {
            "speed-up": 1.3,
            "search time": 0.2,
            f"mine: {graph.model}: layer {first} at batch 1": 1e-3,
            f"mine: {graph.model}: layer {second} at batch 1": 2e-3,
            f"mine: {graph.model}: all layers at batch 1": 3e-3,
            f"mine: {graph.model}: layer {first} at batch 2": 2e-3,
            f"mine: {graph.model}: layer {second} at batch 2": 4e-3,
            f"mine: {graph.model}: all layers at batch 2": 6e-3,
            f"mine: {graph.model}: layer {first}, mean over batches": 2**0.5 * 1e-3,
            f"mine: {graph.model}: layer {second}, mean over batches": 2**0.5 * 2e-3,
            "run: iteration alone, median": run.foreground.alone.iteration_time.p50,
            "run: slowdown beside the background": 100 * run.foreground.slowdown,
            "run: harvest of the background": 100 * run.background.harvest,
        }
    )
    assert [check.statement for check in checks] == ["it gains"]


def test_layers_of_one_profile_are_a_group_their_means_another_and_their_sums_are_alone(folder: Path) -> None:
    groups = {each.name: each.group for each in observe(folder)[0]}
    layers = {group for name, group in groups.items() if ": layer " in name and " at batch " in name}
    means = {group for name, group in groups.items() if "mean over batches" in name}
    assert len(layers) == len(means) == 1 and layers != means and "" not in layers | means
    assert {group for name, group in groups.items() if ": layer " not in name} == {""}


def test_a_spread_is_in_the_numbers_own_unit(folder: Path) -> None:
    spreads = {each.name.split(": ")[-1]: each.spread for each in observe(folder)[0]}
    assert spreads["search time"] == 0.01
    assert spreads["all layers at batch 2"] == pytest.approx(0.1 * 6e-3)


def test_a_record_with_an_invalid_field_is_an_error_that_names_it(folder: Path) -> None:
    text = (folder / "record.json").read_text()
    (folder / "record.json").write_text(text.replace('"holds": true', '"holds": "perhaps"'))
    with pytest.raises(DocumentError, match=r"record.json: field 'checks.0.holds' is 'perhaps'"):
        observe(folder)
    (folder / "record.json").write_text("{")
    with pytest.raises(DocumentError, match=r"record.json: not JSON"):
        observe(folder)
