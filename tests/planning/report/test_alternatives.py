"""The price list of a layer against plans that were made that way."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.errors import InvalidValueError
from deeppool.planning.planner import plan
from deeppool.planning.report.alternatives import price_list
from deeppool.planning.report.explain import reason
from deeppool.records import files
from tests.figures.records import two_layer_plan
from tests.planning.search.test_search import LIMITS, ROUNDING, Definition, places_of
from tests.planning.test_planner import small_plan
from tests.sampling import examples
from tests.strategies import problems


@examples(60)
@given(problems(), st.sampled_from(LIMITS))
def test_each_count_costs_what_the_plan_with_it_would(problem, limit):
    made, definition = plan(*problem, limit), Definition(*problem)
    places = places_of(made)
    now = definition.iteration_time(places)
    for index, layer in enumerate(price_list(made).layers):
        count, start = places[index]
        counts = [price.gpu_count for price in layer.counts]
        assert counts == sorted({count, *(option.gpu_count for option in made.layers[index].alternatives)})
        assert [price.gpu_count for price in layer.counts if price.chosen] == [layer.gpu_count] == [count]
        for price in layer.counts:
            changed = [*places[:index], (price.gpu_count, start), *places[index + 1 :]]
            then, amplifications = definition.iteration_time(changed), definition.amplifications(changed)
            assert price.time == pytest.approx(definition.times(changed)[index], rel=1e-9)
            assert price.amplification == pytest.approx(amplifications[index], rel=1e-9)
            assert price.iteration_time_change == pytest.approx(then - now, abs=1e-9 * (then + now))
            broken = [value for value in amplifications if limit and value > limit * (1 + ROUNDING)]
            assert len(price.over_limit) == len(broken)


def test_one_layer_has_a_list_of_its_own_and_a_reason():
    made = small_plan()
    (found,) = price_list(made, "layer1").layers
    assert found == price_list(made).layers[1]
    assert (found.name, found.reason) == ("layer1", reason(made.layers[1], made.gpu_counts))


def test_the_text_has_a_line_for_every_count_and_says_which_one_is_the_plans():
    text = price_list(small_plan(), "layer1").explain()
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()[:1] and line.split()[0].isdigit()}
    assert list(rows) == ["1", "2", "4"]
    assert "the plan's" in rows["1"]
    assert "itself" in rows["4"]
    assert max(map(len, text.splitlines())) <= 100


def test_an_unknown_layer_is_answered_with_those_like_it():
    with pytest.raises(InvalidValueError, match=r"no layer 'layr1' among the 2 layers of drawn; there are layer1"):
        price_list(small_plan(), "layr1")


def test_a_plan_without_prices_is_refused():
    with pytest.raises(InvalidValueError, match="the plan of tiny holds no prices of other GPU counts"):
        price_list(two_layer_plan())


def test_a_layer_without_another_choice_has_a_list_of_one():
    made = small_plan()
    alone = dataclasses.replace(made.layers[1], alternatives=())
    found = price_list(dataclasses.replace(made, layers=(made.layers[0], alone)), "layer1")
    assert [price.chosen for price in found.layers[0].counts] == [True]


def test_where_one_count_was_searched_it_is_the_whole_list():
    made = dataclasses.replace(two_layer_plan(), gpu_counts=(4,))
    assert [len(layer.counts) for layer in price_list(made).layers] == [1, 1]


def test_price_list_read_back_is_the_one_written(tmp_path):
    prices = price_list(small_plan())
    assert files.load(files.save(prices, tmp_path / "prices.json")) == prices
