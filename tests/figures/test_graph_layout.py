"""Where layers stand: by their depth, apart from one another, with edges that pass nobody's place."""

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.figures.graph_layout import columns, layered_layout
from tests.strategies import chain_graphs, series_parallel_graphs, tangled_graphs

GRAPHS = st.one_of(series_parallel_graphs(12), tangled_graphs(9), chain_graphs(9))


def edges_of(predecessors):
    return [(source, target) for target, sources in enumerate(predecessors) for source in sources]


def test_branches_stand_side_by_side_and_the_longest_goes_straight_on():
    placed = layered_layout([(), (0,), (0,), (1,), (0, 2, 3)])
    assert placed.rows == (0, 1, 1, 2, 3)
    assert placed.lanes == (0, 0, 1, 0, 0)
    # 2 goes down beside 3, the direct edge beside both.
    assert placed.edge_lanes == {(2, 4): 1, (0, 4): 2}
    assert (placed.height, placed.width) == (4, 3)


def test_shortcuts_of_one_series_share_a_lane():
    residual = [(), (0,), (0, 1), (2,), (2, 3)]
    assert layered_layout(residual).edge_lanes == {(0, 2): 1, (2, 4): 1}
    assert layered_layout(residual).width == 2


@given(GRAPHS)
def test_a_row_is_the_longest_path_and_no_two_layers_stand_in_one_place(graph):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered_layout(predecessors)
    paths = networkx.DiGraph(edges_of(predecessors))
    paths.add_nodes_from(range(len(predecessors)))
    for row, layers in enumerate(networkx.topological_generations(paths)):
        assert {placed.rows[layer] for layer in layers} == {row}
    assert len(set(zip(placed.rows, placed.lanes, strict=True))) == len(predecessors)


@given(GRAPHS)
def test_an_edge_over_several_rows_runs_where_no_layer_stands(graph):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered_layout(predecessors)
    stands = set(zip(placed.rows, placed.lanes, strict=True))
    long = [(a, b) for a, b in edges_of(predecessors) if placed.rows[b] - placed.rows[a] > 1]
    assert set(placed.edge_lanes) == set(long)
    for source, target in long:
        between = range(placed.rows[source] + 1, placed.rows[target])
        assert not stands & {(row, placed.edge_lanes[source, target]) for row in between}


@given(series_parallel_graphs(12))
def test_branches_never_share_a_lane_in_a_row(graph):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered_layout(predecessors)
    taken = list(zip(placed.rows, placed.lanes, strict=True))
    for (source, target), lane in placed.edge_lanes.items():
        taken += [(row, lane) for row in range(placed.rows[source] + 1, placed.rows[target])]
    assert len(taken) == len(set(taken))


@given(GRAPHS, st.integers(1, 5))
def test_columns_divide_the_rows_in_order(graph, count):
    predecessors = [layer.predecessors for layer in graph.layers]
    placed = layered_layout(predecessors)
    found = columns(placed, edges_of(predecessors), count)
    assert [row for column in found for row in range(column.first, column.end)] == list(range(placed.height))
    assert len(found) <= count


def test_columns_end_between_blocks():
    # Blocks of four rows and an edge past them; four columns of ten rows would cut through.
    predecessors = [()]
    for _ in range(10):
        fork = len(predecessors) - 1
        predecessors += [(fork,), (fork + 1,), (fork + 2,), (fork, fork + 3)]
    found = columns(layered_layout(predecessors), edges_of(predecessors), 4)
    assert len(found) == 4
    assert all((column.first - 1) % 4 == 0 for column in found[1:])


@pytest.mark.parametrize("length", [1, 2, 150])
def test_a_chain_is_a_lane(length):
    placed = layered_layout([(index - 1,) if index else () for index in range(length)])
    assert (placed.height, placed.width) == (length, 1)
