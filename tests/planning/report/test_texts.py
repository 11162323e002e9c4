"""Tables of records are text wherever they are made, in a notebook too."""

from collections.abc import Callable
from dataclasses import replace

import pytest

import deeppool as dp
from deeppool.planning.report.alternatives import alternatives_of
from tests.figures.records import run_of

PROFILE = dp.find_profile("vgg16-cpu")
SLOWER = replace(
    PROFILE, measurements=tuple(replace(x, forward=tuple(2 * time for time in x.forward)) for x in PROFILE.measurements)
)
PLAN = dp.plan(PROFILE, 4, 8, 2.0)
STUDY = dp.scaling(PROFILE, dp.find_steps("imagenet-90-epochs"), gpu_counts=[1, 2], bandwidths=[1e9], global_batch=8)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        (PLAN.explain, "why not fewer, why not more"),
        (dp.diff(PLAN, dp.plan(PROFILE, 4, 8, 1.5)).explain, "amplification_limit"),
        (alternatives_of(PLAN, "classifier.0").explain, "classifier.0"),
        (STUDY.table, "speed-up"),
        (dp.compare_runs(run_of(), run_of(background=False)).explain, "setting"),
        (dp.compare_profiles(PROFILE, SLOWER).explain, "in the iteration"),
    ],
    ids=["plan", "diff", "prices", "study", "runs", "profiles"],
)
def test_a_table_is_the_same_text_in_a_kernel(
    text: Callable[[], str], phrase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = text()
    assert phrase in elsewhere
    # rich checks this for a notebook, in which it displays instead of prints; kernels check it for colours.
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert text() == elsewhere


def test_long_names_of_layers_cut_off_nothing() -> None:
    """Those of adapters in a transformer have 90 characters and more."""
    layers = tuple(replace(layer, name=f"base_model.{'encoder.' * 10}{layer.name}") for layer in PROFILE.graph.layers)
    made = dp.plan(replace(PROFILE, graph=replace(PROFILE.graph, layers=layers)), 4, 8, 2.0)
    for text in (made.explain(), alternatives_of(made).explain()):
        assert "…" not in text[text.index("GPUs  ") :]
    names = "".join(line[:50].strip() for line in made.explain().splitlines())
    assert layers[0].name + layers[1].name in names
