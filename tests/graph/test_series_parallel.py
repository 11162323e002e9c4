"""Graphs as trees of series, blocks and non-series-parallel regions: worked out by hand, and put together again."""

import random

import pytest

from deeppool.graph.series_parallel import NonSeriesParallel, ParallelBlock, Series, decompose, layers_of, parts_of
from tests.planning.random_problems import SHAPES, random_edges


def chain(*layers, tail=None):
    """Layers one after another."""
    return Series(layers, (None,) * len(layers), tail)


def block(*branches, direct=False):
    return ParallelBlock(branches, direct)


# -- by hand ----------------------------------------------------------------------------------------


def test_chain_is_a_series():
    assert decompose([(), (0,), (1,)]) == chain(0, 1, 2)


def test_residual_connection_is_a_branch_and_a_direct_edge():
    assert decompose([(), (0,), (1,), (0, 2)]) == Series((0, 3), (None, block(chain(1, 2), direct=True)))


def test_two_layers_that_read_the_data_fork_from_it():
    assert decompose([(), (), (0, 1)]) == Series((2,), (block(chain(0), chain(1)),))


def test_interleaved_branches_are_separated():
    """0 → 1 → 3 → 5 and 0 → 2 → 4 → 5, with interleaved numbers."""
    assert decompose([(), (0,), (0,), (1,), (2,), (3, 4)]) == Series((0, 5), (None, block(chain(1, 3), chain(2, 4))))


def test_branch_forks_again_inside():
    inner = Series((1, 4), (None, block(chain(2), chain(3))))
    assert decompose([(), (0,), (1,), (1,), (2, 3), (0,), (4, 5)]) == Series((0, 6), (None, block(inner, chain(5))))


def test_branch_that_meets_only_at_the_outer_join_has_a_tail():
    tail = block(chain(2), chain(3))
    outer = block(chain(1, tail=tail), chain(4))
    assert decompose([(), (0,), (1,), (1,), (0,), (2, 3, 4)]) == Series((0, 5), (None, outer))


def test_a_tail_has_a_direct_edge_if_the_outer_join_reads_its_fork():
    outer = block(chain(1, tail=block(chain(2), direct=True)), chain(3))
    assert decompose([(), (0,), (1,), (0,), (1, 2, 3)]) == Series((0, 4), (None, outer))


def test_tail_may_have_a_tail():
    """As Inception-v3's last blocks, one level deeper."""
    inner = chain(2, tail=block(chain(3), chain(4)))
    outer = block(chain(1, tail=block(inner, chain(5))), chain(6))
    found = decompose([(), (0,), (1,), (2,), (2,), (1,), (0,), (3, 4, 5, 6)])
    assert found == Series((0, 7), (None, outer))


def test_layers_that_read_across_branches_are_not_series_parallel():
    """Layer 4 reads both 1 and 2, of which 3 reads one: no branches describe that."""
    found = decompose([(), (0,), (0,), (1,), (1, 2), (3, 4)])
    assert found == Series((0, 5), (None, NonSeriesParallel((1, 2, 3, 4))))


def test_a_branch_that_ends_in_an_irregular_region_absorbs_its_parallel_branches():
    """Layer 1 is followed by such a region of 2 to 5, which meets only at the join outside, where 6 ends too."""
    found = decompose([(), (0,), (1,), (1,), (2,), (2, 3), (0,), (4, 5, 6)])
    assert found == Series((0, 7), (None, NonSeriesParallel((1, 2, 3, 4, 5, 6))))


def test_dense_block_is_not_series_parallel():
    assert decompose([(), (0,), (0, 1), (0, 1, 2), (1, 2, 3)]) == Series((0, 4), (None, NonSeriesParallel((1, 2, 3))))


def test_an_irregular_region_absorbs_parallel_branches_but_not_the_layers_around():
    """Between the cuts 0 and 6 lie a region (1 to 4) and a branch (5): one region, since one piece has no cut."""
    found = decompose([(), (0,), (0,), (1, 2), (2,), (0,), (3, 4, 5), (6,)])
    assert found == Series((0, 6, 7), (None, NonSeriesParallel((1, 2, 3, 4, 5)), None))


# -- any graph --------------------------------------------------------------------------------------


def edges_of(series, fork, found):
    """Records what each layer of a series reads; returns the layers that the outer join reads."""
    for layer, between in zip(series.layers, series.blocks, strict=True):
        found[layer] = {fork} if between is None else ends_of(between, fork, found)
        fork = layer
    return {fork} if series.tail is None else ends_of(series.tail, fork, found)


def ends_of(between, fork, found):
    ends = {fork} if between.direct else set()
    return ends.union(*(edges_of(branch, fork, found) for branch in between.branches))


@pytest.mark.parametrize("shape", SHAPES)
def test_tree_put_together_again_is_the_graph(shape):
    regions = 0
    for number in range(400):
        rng = random.Random(f"{shape} {number}")
        edges = random_edges(rng, rng.randint(1, 20), shape)
        tree = decompose(edges)
        assert sorted(layers_of(tree)) == list(range(len(edges)))
        if any(isinstance(part, NonSeriesParallel) for part in parts_of(tree)):
            regions += 1
            continue
        found = {}
        assert edges_of(tree, -1, found) == {len(edges) - 1}
        assert [found[layer] - {-1} for layer in range(len(edges))] == [set(sources) for sources in edges]
    assert regions == 0 if shape in ("chain", "branches", "nested", "tails") else regions > 40


@pytest.mark.parametrize("shape", SHAPES)
def test_branches_do_not_read_from_one_another(shape):
    for number in range(200):
        edges = random_edges(random.Random(f"apart {shape} {number}"), 20, shape)
        for part in parts_of(decompose(edges)):
            if isinstance(part, ParallelBlock):
                inside = [set(layers_of(branch)) for branch in part.branches]
                for mine in inside:
                    others = set().union(*inside) - mine
                    assert not others & {source for layer in mine for source in edges[layer]}
