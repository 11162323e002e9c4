"""What small batches cost a device and each layer: the figures' values against the closed forms of made-up times."""

import pytest

from deeppool.cluster.cluster import Cluster
from deeppool.errors import InvalidValueError, MissingProfileError
from deeppool.evaluation import figures
from deeppool.evaluation.experiments.search_times import SEARCHES, capture_times, search_times
from deeppool.planning.planner import plan
from deeppool.profiling.shipped import find_profile
from tests.strategies import make_graph, profile_from_times

LAUNCH = 2e-3


@pytest.fixture(scope="module")
def profile():
    """The first layer's time is proportional to the batch, the second has a part that is not."""
    graph = make_graph([(), (0,)], [(), (4096,)], [2**10, 2**26])
    return profile_from_times(graph, [lambda b: 1e-3 * b, lambda b: LAUNCH + 1e-3 * b])


def test_each_layers_speedup_is_what_its_time_gives(profile):
    bars = figures.layer_speedups(profile, gpus=8, global_batch=16).data[0]
    assert list(bars.y) == pytest.approx([8, (LAUNCH + 16e-3) / (LAUNCH + 2e-3)])
    assert [text[0] for text in bars.customdata] == [layer.name for layer in profile.graph.layers]


@pytest.mark.parametrize(
    ("gpus", "batch", "error", "phrase"),
    [
        (3, 16, InvalidValueError, "global_batch must be a multiple of the GPUs, got 16 on 3"),
        (0, 16, InvalidValueError, "got 16 on 0"),
    ],
)
def test_a_batch_that_cannot_be_divided_is_refused(profile, gpus, batch, error, phrase):
    with pytest.raises(error, match=phrase):
        figures.layer_speedups(profile, gpus=gpus, global_batch=batch)


def test_a_share_that_no_profile_knows_is_refused():
    from tests.strategies import BATCH_SIZES

    graph = make_graph([()], [()], [0])
    few = profile_from_times(graph, [lambda b: 1e-3 * b], batch_sizes=BATCH_SIZES[2:])
    with pytest.raises(MissingProfileError, match="no time for layer"):
        figures.layer_speedups(few, gpus=8, global_batch=16)


def test_utilisation_is_throughput_over_that_of_the_best_batch(profile):
    line = figures.utilisation(profile).data[0]
    assert list(line.x) == list(profile.batch_sizes)
    speeds = [batch / (LAUNCH + 2e-3 * batch) for batch in profile.batch_sizes]
    assert list(line.y) == pytest.approx([100 * speed / max(speeds) for speed in speeds])
    assert f"<b>{profile.provenance}</b>" in figures.utilisation(profile).layout.title.subtitle.text


def test_utilisation_of_nothing_is_refused():
    with pytest.raises(InvalidValueError, match="no profile to draw"):
        figures.utilisation()


def test_workloads_are_the_graphs_parameters_and_layers(profile):
    figure = figures.workloads(profile.graph)
    totals = {axis: sum(sum(bar.x) for bar in figure.data if bar.xaxis == axis) for axis in ("x", "x2")}
    layers = profile.graph.layers
    assert totals["x"] == pytest.approx(sum(layer.parameter_bytes for layer in layers) / 1e6)
    assert totals["x2"] == len(layers)


def test_search_times_are_of_all_searches_at_every_size(profile):
    found = search_times({"mine": profile}, (2, 4), 1, 2.0, 2)
    assert [(x.model, x.gpus, x.search) for x in found] == [
        ("mine", gpus, search) for gpus in (2, 4) for search in SEARCHES
    ]
    assert all(x.pricing > 0 and x.median > 0 and x.spread >= 0 and x.explanation > 0 for x in found)
    for here in found:
        model, search = ("paper", here.search) if here.search != "as run" else (None, "exact")
        made = plan(profile, Cluster(here.gpus), here.gpus, 2.0, network_model=model, search=search)
        assert here.iteration_time == made.iteration_time
    drawn = figures.search_times(found)
    assert [list(bar.y) for bar in drawn.data] == [
        [x.median for x in found if x.search == search] for search in SEARCHES
    ]
    with pytest.raises(InvalidValueError, match="repeats must be at least 2"):
        search_times({"mine": profile}, (2,), 1, 2.0, 1)


@pytest.mark.slow
def test_capture_times_are_of_the_model_and_its_tree():
    (found,) = capture_times({"vgg16": find_profile("vgg16-cpu")}, 1)
    assert found.model == "vgg16"
    assert found.capture > found.tree > 0
