"""What a background saves, against sums by hand."""

import pytest

from deeppool.errors import InvalidValueError
from deeppool.records.cost_saved import CostSaved, check_gpu_price


def test_what_is_saved_is_the_harvest_without_the_slowdown_at_the_price() -> None:
    # 4 GPUs for an hour, of which half an hour each is harvested; the same iterations take 48 minutes alone.
    found = CostSaved.of(seconds=3600, slowdown=0.25, harvest=0.5, ranks=4, gpu_price=3.0)
    assert (found.gpu_seconds, found.harvested_gpu_seconds) == (4 * 3600, 4 * 1800)
    assert found.slowdown_gpu_seconds == pytest.approx(4 * 12 * 60)
    assert found.saved == pytest.approx(4 * (30 - 12) / 60 * 3.0)
    assert found.saved_per_gpu_hour == pytest.approx(0.9)
    assert str(found) == "0.9 per GPU-hour at 3: harvested 7,200 GPU-s, slowdown 2,880, of 14,400"


def test_gpus_that_the_foreground_never_uses_save_nothing() -> None:
    """On 2 of 4 GPUs a second job trains 2 GPU-hours by itself; here it trains 2.4, and 2 GPUs lose 12 minutes each."""
    found = CostSaved.of(seconds=3600, slowdown=0.25, harvest=0.6, ranks=4, gpu_price=1.0, unused=2)
    assert found.saved == pytest.approx(2.4 - 2 - 2 * 12 / 60)
    assert str(found).endswith("slowdown 1,440, on GPUs that nothing else uses 7,200, of 14,400")


def test_a_background_that_costs_more_than_it_gives_saves_less_than_nothing() -> None:
    assert CostSaved.of(seconds=10, slowdown=0.5, harvest=0.1, ranks=1, gpu_price=1.0).saved < 0


@pytest.mark.parametrize("price", [0.0, -1.0, float("inf"), float("nan")])
def test_a_price_that_is_none_is_refused(price: float) -> None:
    with pytest.raises(InvalidValueError, match="gpu_price must be positive and finite"):
        check_gpu_price(price, has_background=True)
    with pytest.raises(InvalidValueError, match="give background="):
        check_gpu_price(1.0, has_background=False)
