"""Seconds and bytes as people read them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deeppool.errors import InvalidValueError
from deeppool.units import (
    format_bit_rate,
    format_bytes,
    format_count,
    format_growth,
    format_percent,
    format_rate,
    format_seconds,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (2.5e-9, "2.5 ns"),
        (1.5e-14, "0.000015 ns"),
        (999.9, "1000 s"),
        (-5000.0, "-5000 s"),
        (1e-6, "1 us"),
        (0.00132, "1.32 ms"),
        (-0.00132, "-1.32 ms"),
        (1.0, "1 s"),
        (0.9998, "1 s"),
        (0.9994, "999 ms"),
        (90.0, "90 s"),
        (86400.0, "86400 s"),
    ],
)
def test_seconds_take_the_unit_that_keeps_the_number_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("bytes_per_second", "text"),
    [
        (125.0, "1 kbit/s"),
        (1.25e8, "1 Gbit/s"),
        (25e9, "200 Gbit/s"),
        (1.25e11, "1 Tbit/s"),
        (6e11, "4.8 Tbit/s"),
        (1.25e6, "10 Mbit/s"),
    ],
)
def test_bit_rates_are_those_of_network_adapters(bytes_per_second: float, text: str) -> None:
    assert format_bit_rate(bytes_per_second) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (2**20 - 1, "1.0 MiB"),
        (15728640, "15.0 MiB"),
        (3 * 2**40, "3.0 TiB"),
    ],
)
def test_bytes_count_in_powers_of_1024(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "seconds"), [("3h", 10800), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("0.5h", 1800)]
)
def test_a_span_of_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "3", "h", "3 hours", "3d", "0s", "-1h", "1h x"])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="a span of time is, for example, 3h, 90m or 1h30m, got"):
        parse_seconds(text)


@pytest.mark.parametrize(("fraction", "text"), [(0.0312, "+3.1 %"), (-0.5, "-50.0 %"), (0, "+0.0 %")])
def test_percent_always_shows_its_sign(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.5, "+50.0 %"),
        (1, "+100.0 %"),
        (1.5, "2.5 times"),
        (2054, "2,055 times"),
        (-0.99, "-99.0 %"),
        (-0.9995, "0.0005 times"),
        (-1, "-100.0 %"),
        (-2, "-200.0 %"),
    ],
)
def test_a_change_of_which_a_percentage_says_little_is_a_factor(fraction: float, text: str) -> None:
    assert format_growth(fraction) == text


@given(st.floats(min_value=1e-9, max_value=900))
def test_the_text_of_a_time_means_that_time_to_three_digits(seconds: float) -> None:
    number, unit = format_seconds(seconds).split()
    assert float(number) * {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit] == pytest.approx(seconds, rel=0.006)


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (0, "0"),
        (0.0000123, "0.0000123"),
        (0.0123, "0.0123"),
        (47.12, "47.1"),
        (999.4, "999"),
        (999.6, "1,000"),
        (1063.0, "1,060"),
    ],
)
def test_rates_have_no_exponent(rate: float, text: str) -> None:
    assert format_rate(rate) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(124.84, "124.8"), (999.96, "1,000"), (3876.4, "3,876"), (144_600.0, "144,600")]
)
def test_rates_have_as_many_digits_as_asked_for(rate: float, text: str) -> None:
    assert format_rate(rate, 4) == text


def test_one_is_singular() -> None:
    assert [format_count(number, "notebook") for number in range(3)] == ["0 notebooks", "1 notebook", "2 notebooks"]
