"""Where layers stand: by their depth, apart from one another, with edges that pass nobody's place."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.figures.layered import columns, layered
from tests.strategies import chain_graphs, series_parallel_graphs, tangled_graphs

GRAPHS = st.one_of(series_parallel_graphs(12), tangled_graphs(9), chain_graphs(9))


def edges_of(predecessors):
    return [(source, target) for target, sources in enumerate(predecessors) for source in sources]


def test_branches_stand_side_by_side_and_the_longest_goes_straight_on():
    placed = layered([(), (0,), (0,), (1,), (0, 2, 3)])
    assert placed.rows == (0, 1, 1, 2, 3)
    assert placed.lanes == (0, 0, 1, 0, 0)
    # 2 goes down beside 3, the direct edge beside both.
    assert placed.passing == {(2, 4): 1, (0, 4): 2}
    assert (placed.height, placed.width) == (4, 3)


def test_shortcuts_of_one_series_share_a_lane():
    residual = [(), (0,), (0, 1), (2,), (2, 3)]
    assert layered(residual).passing == {(0, 2): 1, (2, 4): 1}
    assert layered(residual).width == 2


@given(GRAPHS)
def test_a_row_is_the_longest_path_and_no_two_layers_stand_in_one_place(graph):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered(predecessors)
    paths = networkx.DiGraph(edges_of(predecessors))
    paths.add_nodes_from(range(len(predecessors)))
    for row, layers in enumerate(networkx.topological_generations(paths)):
        assert {placed.rows[layer] for layer in layers} == {row}
    assert len(set(zip(placed.rows, placed.lanes, strict=True))) == len(predecessors)


@given(GRAPHS)
def test_an_edge_over_several_rows_runs_where_no_layer_stands(graph):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered(predecessors)
    stands = set(zip(placed.rows, placed.lanes, strict=True))
    long = [(a, b) for a, b in edges_of(predecessors) if placed.rows[b] - placed.rows[a] > 1]
    assert set(placed.passing) == set(long)
    for source, target in long:
        between = range(placed.rows[source] + 1, placed.rows[target])
        assert not stands & {(row, placed.passing[source, target]) for row in between}


@given(series_parallel_graphs(12))
def test_branches_never_share_a_lane_in_a_row(graph):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered(predecessors)
    taken = list(zip(placed.rows, placed.lanes, strict=True))
    for (source, target), lane in placed.passing.items():
        taken += [(row, lane) for row in range(placed.rows[source] + 1, placed.rows[target])]
    assert len(taken) == len(set(taken))


@given(GRAPHS, st.integers(1, 5))
def test_columns_divide_the_rows_in_order(graph, count):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered(predecessors)
    found = columns(placed, edges_of(predecessors), count)
    assert [row for column in found for row in range(column.first, column.end)] == list(range(placed.height))
    assert len(found) <= count


def test_columns_end_between_blocks():
    # Blocks of four rows and an edge past them; four columns of ten rows would cut through.
    predecessors = [()]
    for _ in range(10):
        fork = len(predecessors) - 1
        predecessors += [(fork,), (fork + 1,), (fork + 2,), (fork, fork + 3)]
    found = columns(layered(predecessors), edges_of(predecessors), 4)
    assert len(found) == 4
    assert all((column.first - 1) % 4 == 0 for column in found[1:])


@pytest.mark.parametrize("length", [1, 2, 150])
def test_a_chain_is_a_lane(length):
    placed = layered([(index - 1,) if index else () for index in range(length)])
    assert (placed.height, placed.width) == (length, 1)
