"""A short kernel behind a long queue of low priority, on an emulated H200, against what the multiprocessors allow."""

from collections import defaultdict

import pytest

from deeppool.device.emulated.device import new_device
from deeppool.device.find import find_device
from deeppool.evaluation.experiments.stream_priorities import QUEUED, PriorityEffect, stream_priorities

MANY, WAVE = "many short blocks", "one wave of long blocks"


def by_background(effects: tuple[PriorityEffect, ...]) -> dict[str, dict[tuple[str, str], float]]:
    found: dict[str, dict[tuple[str, str], float]] = defaultdict(dict)
    for effect in effects:
        found[effect.background][effect.captured, effect.replayed] = effect.seconds
    return found


def test_the_priority_of_the_capture_counts_and_running_blocks_are_not_stopped() -> None:
    effects = stream_priorities(new_device("h200"))
    alone = effects[0].alone
    assert all(effect.alone == pytest.approx(alone) for effect in effects)
    found = by_background(effects)
    many, wave = found[MANY], found[WAVE]
    # Whatever the priority of the replay.
    for seconds in (many, wave):
        assert seconds["high", "high"] == pytest.approx(seconds["high", "low"])
        assert seconds["low", "low"] == pytest.approx(seconds["low", "high"])
    # Behind one of the thousands of blocks of a kernel, or behind the whole kernel that has started.
    assert many["high", "high"] < 10 * alone < many["low", "low"] / 5
    # Behind blocks that fill the device to their end, whatever its own priority.
    assert wave["high", "high"] == pytest.approx(wave["low", "low"])
    assert wave["high", "high"] > 50 * alone


def test_in_one_hardware_queue_it_waits_for_the_whole_queue_at_any_priority() -> None:
    queued = by_background(stream_priorities(new_device("h200", queues=1)))
    separate = by_background(stream_priorities(new_device("h200")))
    for name in (MANY, WAVE):
        assert len({round(seconds, 9) for seconds in queued[name].values()}) == 1
        # The kernel that runs first, and all others.
        assert queued[name]["high", "high"] > (QUEUED - 1) * separate[name]["low", "low"]


@pytest.mark.parametrize("kind", ["cpu", "emulated"])
def test_it_runs_in_the_time_of_the_machine_too(kind: str) -> None:
    effects = stream_priorities(find_device(kind))
    assert len(effects) == 8
    assert all(effect.seconds > 0 and effect.alone > 0 for effect in effects)
