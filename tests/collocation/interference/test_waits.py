"""What a background gets of waits: what becomes of what two trainings count, and when one of them rests."""

from contextlib import contextmanager

import pytest

from deeppool.collocation.interference import training_worker, waits

COMPUTING = (0.75, 0.5)
"""Part of the time for which the foreground uses its core, by the length of its waits."""


def test_the_harvest_is_what_was_done_beside_over_alone_over_the_idle_time(monkeypatch):
    waiting = []

    @contextmanager
    def running(children, rest):
        waiting.append(rest)
        yield [{"seconds": 2.0, "cpu": 2.0 * COMPUTING[rest]}]
        waiting.pop()

    def run(children, kernel, seconds):
        return [{"seconds": seconds, "count": seconds * (6 if waiting else 40)}]

    monkeypatch.setattr(waits, "start", lambda *_, **setup: (None, None))
    monkeypatch.setattr(waits, "running", running)
    monkeypatch.setattr(waits, "run", run)
    shares: list[float] = []
    found = waits.measure_waits((1e-3, 1e-2), 3.0, 2, shares.append)
    # 6 of 40 steps, while a quarter or a half of the time is idle.
    assert found == pytest.approx((0.15 / 0.25, 0.15 / 0.5))
    assert shares == [0.25, 0.5, 0.75, 1.0]


class Clock:
    """Sleeping sets it forward."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_training_rests_when_it_has_worked_for_long_enough(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(training_worker, "time", clock)
    rest = training_worker.PeriodicSleep()
    slept = []
    for rest.wait, rest.work in ((0.0, 0.0), (0.25, 0.5)):
        for _ in range(12):
            clock.now += 0.125
            before = clock.now
            rest()
            slept.append(clock.now - before)
    # More than half a second of layers of an eighth: five. Before the first rest there were twelve.
    assert slept == [0.0] * 12 + [0.25] + ([0.0] * 4 + [0.25]) * 2 + [0.0]
