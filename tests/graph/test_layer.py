"""Graphs of layers: which ones are refused, and who reads a layer."""

from dataclasses import replace

import pytest

from deeppool.errors import InvalidValueError
from deeppool.graph.layer import MAXIMUM_LAYERS, Layer, LayerGraph
from tests.strategies import make_graph

DIAMOND = make_graph([(), (0,), (0,), (1, 2)])


def with_layer(index: int, **changes: object) -> LayerGraph:
    """The diamond with one layer changed."""
    layers = list(DIAMOND.layers)
    layers[index] = replace(layers[index], **changes)  # type: ignore[arg-type]
    return replace(DIAMOND, layers=tuple(layers))


def test_successors_are_the_layers_that_read_one() -> None:
    assert DIAMOND.successors() == ((1, 2), (3,), (3,), ())


def test_a_tied_parameter_counts_for_the_first_layer_that_uses_it() -> None:
    """Layer 3 uses the weight of layer 0 and has a bias of its own; the file of layer 1 has the sum only."""
    graph = with_layer(0, parameters=("w", "b"), parameter_sizes=(100, 10), parameter_bytes=110)
    layers = list(graph.layers)
    layers[1] = replace(layers[1], parameters=("scale", "shift"), parameter_bytes=6)
    layers[3] = replace(layers[3], parameters=("w", "bias"), parameter_sizes=(100, 4), parameter_bytes=104)
    graph = replace(graph, layers=tuple(layers))
    assert graph.gradients == ({"w": 100, "b": 10}, {"scale": 6}, {}, {"bias": 4})
    assert graph.gradient_bytes == (110, 6, 0, 4)
    assert graph.tied == {(0, 3): 100}
    assert not DIAMOND.tied


@pytest.mark.parametrize(
    ("changes", "phrase"),
    [
        ({"predecessors": (2,), "input_bytes": (8,)}, r"number 2, has predecessors \[2\] and input_bytes \[8\]"),
        ({"predecessors": (-1,), "input_bytes": (8,)}, r"predecessors \[-1\]"),
        ({"predecessors": (0,), "input_bytes": ()}, r"predecessors \[0\] and input_bytes \[\]"),
        ({"predecessors": (0,), "input_bytes": (-1,)}, "has a size below 0 bytes"),
        ({"parameter_bytes": -1}, "has a size below 0 bytes"),
        ({"activation_bytes": -1}, "has a size below 0 bytes"),
        ({"autocast_activation_bytes": -1}, "has a size below 0 bytes"),
    ],
)
def test_a_layer_reads_earlier_layers_and_has_no_negative_sizes(changes: dict[str, object], phrase: str) -> None:
    with pytest.raises(InvalidValueError, match=phrase):
        with_layer(2, **changes)


def test_sizes_of_nothing_or_unknown_ones_are_allowed() -> None:
    graph = with_layer(2, predecessors=(0,), input_bytes=(0,), parameter_bytes=0, activation_bytes=None)
    assert graph.layers[2].input_bytes == (0,)


def test_only_the_last_layer_is_read_by_none() -> None:
    with pytest.raises(InvalidValueError, match="no layer reads layer1, but the last one ends every path"):
        with_layer(3, predecessors=(2,), input_bytes=(8,))
    with pytest.raises(InvalidValueError, match="no layer reads layer0, layer1, layer2, but"):
        make_graph([(), (), (), ()])


def test_a_graph_has_a_layer_and_not_more_than_any_model_has() -> None:
    def chain(count: int) -> LayerGraph:
        layers = tuple(
            Layer(str(number), ("linear",), (number - 1,) if number else (), (4,) if number else (), 0, (), "linear")
            for number in range(count)
        )
        return LayerGraph("chain", (1,), layers, 0)

    assert len(chain(1).layers) == 1
    assert len(chain(MAXIMUM_LAYERS).layers) == 10_000
    for count in (0, MAXIMUM_LAYERS + 1):
        with pytest.raises(InvalidValueError, match=f"layers must be 1 to 10000, got {count}"):
            chain(count)


def test_the_fingerprint_is_of_what_a_plan_depends_on() -> None:
    assert with_layer(1, parameter_bytes=DIAMOND.layers[1].parameter_bytes + 4).fingerprint == DIAMOND.fingerprint
    assert len(DIAMOND.fingerprint) == 16
    for changes in ({"name": "other"}, {"operators": ("other",)}, {"signature": "other"}):
        assert with_layer(1, **changes).fingerprint != DIAMOND.fingerprint
    assert with_layer(3, predecessors=(0, 1, 2), input_bytes=(8, 8, 8)).fingerprint != DIAMOND.fingerprint
