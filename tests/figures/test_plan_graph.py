"""A plan on the model's graph: nodes are layers or modules, with the plan's own numbers, at 20 and at 1,155 layers."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.planner.models import gpt, made_up
from deeppool import figures
from deeppool.errors import InvalidValueError
from deeppool.figures import theme
from deeppool.figures.graph_canvas import CHARACTER, PAGE, ROW
from deeppool.figures.module_groups import module_groups, part_of_module
from deeppool.figures.plan_graph import LARGEST, MOST_NODES
from tests.figures.records import layer, plan_of
from tests.sampling import examples


def chain(*names, **options):
    """A millisecond on one GPU each."""
    return plan_of(*(layer(name, 1, forward=1e-3) for name in names), **options)


def nodes(figure):
    """Name → what is drawn of it: place, diameter, colour, text, hover lines, width of its outline."""
    trace = figure.data[1]
    return {
        data[2]: ((x, y), size, colour, text, data[3].split("<br>"), width)
        for data, x, y, size, colour, text, width in zip(
            trace.customdata,
            trace.x,
            trace.y,
            trace.marker.size,
            trace.marker.color,
            trace.text,
            trace.marker.line.width,
            strict=True,
        )
    }


def test_a_node_has_the_gpus_time_and_amplification_of_its_layer() -> None:
    plan = plan_of(
        layer("conv", 4, forward=0.010, backward=0.020, sync=0.002, single_gpu_time=0.100),
        layer("fc", 1, forward=0.006, reshard=0.002, single_gpu_time=0.006),
        limit=2.0,
    )
    drawn = nodes(figures.plan_graph(plan))
    _, size, colour, text, lines, _ = drawn["conv"]
    assert (size, colour) == (LARGEST, 2.0)
    assert text == "conv · <b>4</b>"
    assert lines == [
        "4 of 4 GPUs (GPU 0–3)",
        "32 ms: forward 10 ms, backward 20 ms, sync 2 ms",
        "amplification 1.28 (limit 2)",
    ]
    # A quarter of the time has half the diameter above the smallest.
    assert drawn["fc"][1] == pytest.approx((LARGEST + 7.0) / 2)
    assert drawn["fc"][2] == 0.0
    by_amplification = figures.plan_graph(plan, colour_by="amplification")
    assert nodes(by_amplification)["fc"][2] == pytest.approx(8 / 6)
    assert "limit 2" in by_amplification.layout.coloraxis.colorbar.ticktext
    assert "GPUs of 2 layers" in figures.plan_graph(plan).layout.title.text
    # A limit of the iteration bounds no layer.
    of_all = figures.plan_graph(replace(plan, limit_scope="iteration"), colour_by="amplification")
    assert not [text for text in of_all.layout.coloraxis.colorbar.ticktext if "limit" in text]


def test_the_layers_of_a_module_are_weighted_by_their_time() -> None:
    wide = layer("blocks.0.conv", 4, forward=0.030, single_gpu_time=0.040)
    narrow = layer("blocks.0.fc", 1, forward=0.010, single_gpu_time=0.010)
    others = [layer(f"blocks.{block}.fc", 1, forward=0.001) for block in range(1, MOST_NODES)]
    plan = plan_of(wide, narrow, *others)
    found = nodes(figures.plan_graph(plan))
    assert len(found) == MOST_NODES
    _, _, colour, text, lines, _ = found["blocks.0"]
    # 30 ms on four GPUs and 10 ms on one: 130 GPU-ms in 40 ms, where one GPU takes 50.
    assert colour == pytest.approx(math.log2(130 / 40))
    assert text == "blocks.0 · <b>1–4</b>"
    assert lines[:3] == ["2 layers, 40 ms:", "1 on 1 GPU, 10 ms", "1 on 4 GPUs, 30 ms"]
    assert lines[3].startswith("amplification 2.60")


def test_a_model_of_1155_layers_is_readable_by_module_and_layer_by_layer_in_a_part() -> None:
    profile = made_up(gpt())
    layers = [replace(layer(x.name, 1, forward=1e-3), predecessors=x.predecessors) for x in profile.graph.layers]
    plan = replace(chain("a"), layers=tuple(layers))
    assert len(layers) == 1155
    whole = figures.plan_graph(plan)
    assert whole.layout.height < 45 * ROW
    found = nodes(whole)
    assert len(found) == 99 and {"embedding", "blocks.0", "blocks.95", "head"} <= set(found)
    rows = {}
    for (x, y), _, _, text, *_ in found.values():
        rows.setdefault(y, []).append((x, text.replace("<b>", "").replace("</b>", "")))
    for row in rows.values():
        for (x, text), (after, _) in itertools.pairwise(sorted([*row, (PAGE, "")])):
            assert x + 10 + CHARACTER * len(text) <= after - 6
    assert "1155 layers in 99 groups" in whole.layout.title.text
    block = figures.plan_graph(plan, "blocks.3")
    assert len(nodes(block)) == 12 and "blocks.3.gelu" in nodes(block)
    assert figures.plan_graph(plan, part_of_module([x.name for x in layers], "blocks.3")) == block
    assert "12 of 1155 layers" in block.layout.title.text


def test_a_layer_is_marked_also_within_its_module() -> None:
    plan = chain("a", "b")
    outlines = {name: width for name, (*_, width) in nodes(figures.plan_graph(plan, selected="b")).items()}
    assert outlines == {"a": 1, "b": 3}
    assert theme.VERMILLION in figures.plan_graph(plan, selected="b").data[1].marker.line.color
    deep = chain(*(f"m{index // 2}.layer{index}" for index in range(2 * MOST_NODES)))
    marked = [name for name, (*_, width) in nodes(figures.plan_graph(deep, selected="m3.layer7")).items() if width == 3]
    assert marked == ["m3"]


def test_parts_with_several_ends_are_drawn() -> None:
    """Of a module, several layers may be read outside it."""
    plan = chain("m.a", "m.b", "m.c", "out")
    layers = [replace(x, predecessors=reads) for x, reads in zip(plan.layers, [(), (0,), (0,), (1, 2)], strict=True)]
    drawn = figures.plan_graph(replace(plan, layers=tuple(layers)), "m")
    assert set(nodes(drawn)) == {"m.a", "m.b", "m.c"}
    assert list(drawn.data[0].x).count(None) == 2


def test_what_is_no_part_is_refused() -> None:
    plan = chain("m.a", "m.b")
    for part in ("x", range(1, 3), range(0), range(0, 2, 2), range(-1, 1)):
        with pytest.raises(InvalidValueError, match=r"is no part of the 2 layers of tiny, from 'm\.a' to 'm\.b'"):
            figures.plan_graph(plan, part)
    with pytest.raises(InvalidValueError, match="part must be a str, a range or None, got a list"):
        figures.plan_graph(plan, [0, 1])
    with pytest.raises(InvalidValueError, match="colour_by must be one of gpus, amplification, got 'time'"):
        figures.plan_graph(plan, colour_by="time")


names = st.lists(
    st.lists(st.sampled_from(["a", "b", "0", "1"]), min_size=1, max_size=4).map(".".join), min_size=1, max_size=60
)


@examples(200)
@given(names, st.integers(1, 30), st.data())
def test_groups_are_all_the_layers_in_order_and_fit(names, most, data) -> None:
    first = data.draw(st.integers(0, len(names) - 1))
    part = range(first, data.draw(st.integers(first + 1, len(names))))
    groups = module_groups(names, part, most)
    assert [index for group in groups for index in range(group.first, group.end)] == list(part)
    assert len(groups) <= most
    for group in groups:
        if group.size == 1:
            assert group.name == names[group.first]
    if len(part) <= most:
        # Layers of one name that follow one another are one group.
        assert len(groups) == sum(1 for _ in itertools.groupby(names[index] for index in part))


def test_consecutive_modules_share_a_group_where_a_level_does_not_fit() -> None:
    names = ["stem", *(f"blocks.{index}" for index in range(40)), "head"]
    assert [group.name for group in module_groups(names, range(42), 14)][:2] == [
        "stem … blocks.1",
        "blocks.2 … blocks.4",
    ]
    assert [group.name for group in module_groups(names, range(42), 42)] == names
