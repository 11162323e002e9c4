"""What backgrounds get inside transfers: what becomes of what is counted, and when ranks end."""

import math
from contextlib import ExitStack, contextmanager

import pytest

from deeppool.collocation.interference import transfers
from deeppool.collocation.interference.cpu_bench import running
from deeppool.device.cpu import usable_cores


def test_the_harvest_is_what_all_backgrounds_do_beside_over_alone_over_the_idle_time_of_all_ranks(monkeypatch):
    moving = []
    cpu = ({"seconds": 2.0, "cpu": 1.5}, {"seconds": 4.0, "cpu": 2.0})

    @contextmanager
    def beside(children, kernel):
        moving.append(children)
        yield list(cpu)
        moving.clear()

    def run(children, kernel, seconds):
        return [{"seconds": seconds, "count": seconds * rate} for rate in ((5, 4) if moving else (50, 10))]

    monkeypatch.setattr(transfers, "_start_ranks", lambda ending: ["rank 0", "rank 1"])
    monkeypatch.setattr(transfers, "start_background", lambda ending, core: core)
    monkeypatch.setattr(transfers, "running", beside)
    monkeypatch.setattr(transfers, "run", run)
    shares: list[float] = []
    # A tenth and four tenths, while a quarter and a half of the time are idle.
    assert transfers.measure_transfers(3.0, 2, shares.append) == pytest.approx((0.1 + 0.4) / (0.25 + 0.5))
    assert shares == [0.5, 1.0]


@pytest.mark.processes
@pytest.mark.skipif(len(usable_cores()) < transfers.RANKS, reason="ranks need a core each, there is one")
def test_ranks_end_with_the_same_all_reduce_as_often_as_they_run(monkeypatch):
    monkeypatch.setattr(transfers, "BYTES", 2**12)
    with ExitStack() as ending:
        ranks = transfers._start_ranks(ending)
        for _ in range(3):
            with running(ranks, 0) as moving:
                pass
            assert len({done["count"] for done in moving}) == 1
            assert all(0 < done["cpu"] < math.inf for done in moving)
