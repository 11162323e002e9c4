"""Transfers carried out on lists of samples, and the port that they keep busiest."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.collectives.layout import Layout
from deeppool.collectives.reshard import busiest_samples, reshard
from deeppool.collectives.schedule import Transfer
from deeppool.errors import InvalidValueError


@st.composite
def layouts(draw, batch):
    """Any GPUs in any order, not only the first ones."""
    gpus = draw(st.lists(st.integers(0, 9), min_size=1, max_size=min(batch, 8), unique=True))
    return Layout(tuple(gpus), batch)


@st.composite
def layout_pairs(draw):
    batch = draw(st.integers(1, 40))
    return draw(layouts(batch)), draw(layouts(batch))


@given(st.integers(1, 60).flatmap(layouts))
def test_shards_hold_every_sample_once_and_differ_by_at_most_one(layout):
    shards = [layout.shard(gpu) for gpu in layout.gpus]
    assert [sample for shard in shards for sample in shard] == list(range(layout.batch))
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    # The larger ones come first: the first GPU has ceil(batch / GPUs), which is what a layer is priced at.
    assert sizes == sorted(sizes, reverse=True)
    assert len(layout.shard(99)) == 0


@given(layout_pairs())
def test_transfers_turn_one_layout_into_the_other(pair):
    source, destination = pair
    held = {gpu: set(source.shard(gpu)) for gpu in source.gpus}
    received = {gpu: held.get(gpu, set()) & set(destination.shard(gpu)) for gpu in destination.gpus}
    for transfer in reshard(source, destination):
        samples = set(range(transfer.start, transfer.stop))
        assert samples, "an empty transfer is a message for nothing"
        assert samples <= held[transfer.source]
        # Nothing arrives twice, and nothing that was there already.
        assert not samples & received[transfer.destination]
        received[transfer.destination] |= samples
    assert received == {gpu: set(destination.shard(gpu)) for gpu in destination.gpus}


@given(layout_pairs())
def test_samples_that_stay_are_not_sent(pair):
    source, destination = pair
    for transfer in reshard(source, destination):
        assert transfer.source != transfer.destination
        kept = set(source.shard(transfer.destination))
        assert not kept & set(range(transfer.start, transfer.stop))


@given(layout_pairs())
def test_order_is_the_same_for_every_rank_and_one_message_a_pair(pair):
    # Point-to-point messages between two ranks match by order: one message a pair cannot be mixed up.
    transfers = reshard(*pair)
    pairs = [(transfer.source, transfer.destination) for transfer in transfers]
    assert len(set(pairs)) == len(pairs)
    assert transfers == reshard(*pair)


@given(layout_pairs())
def test_busiest_port_is_that_of_the_transfers(pair):
    sent, received = Counter(), Counter()
    for transfer in reshard(*pair):
        sent[transfer.source] += transfer.stop - transfer.start
        received[transfer.destination] += transfer.stop - transfer.start
    assert busiest_samples(*pair) == max([0, *sent.values(), *received.values()])


@given(st.integers(1, 40).flatmap(layouts))
def test_equal_layouts_need_no_transfer(layout):
    assert reshard(layout, layout) == ()
    assert busiest_samples(layout, layout) == 0


def test_eight_samples_from_two_gpus_to_four():
    # GPU   0        1
    #       0123     4567
    # GPU   0   1    2   3
    #       01  23   45  67
    transfers = reshard(Layout((0, 1), 8), Layout((0, 1, 2, 3), 8))
    assert transfers == (Transfer(0, 1, 2, 4), Transfer(1, 2, 4, 6), Transfer(1, 3, 6, 8))
    assert busiest_samples(Layout((0, 1), 8), Layout((0, 1, 2, 3), 8)) == 4


@pytest.mark.parametrize(("gpus", "batch"), [((), 4), ((0, 0), 4), ((0, 1, 2), 2)])
def test_layout_that_cannot_be_is_refused(gpus, batch):
    with pytest.raises(InvalidValueError, match=f"{batch} samples cannot be split over GPUs"):
        Layout(gpus, batch)
