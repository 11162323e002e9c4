"""Cores and processes against what a process says it used.

A reading's interval lies between the moments before and after its two readings: a busy machine may take its time there.
"""

import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psutil
import pytest

from deeppool.device.cpu import usable_cores
from deeppool.telemetry import cpu_meter
from deeppool.telemetry.cpu_meter import CoreMeter, ProcessMeter
from deeppool.telemetry.record import ProcessSample

TICK = 0.01
"""Seconds: the step of the operating system's clocks of CPU time."""
MODULE = "tests.telemetry.burner"


class Burner:
    """The other end of the module of that name."""

    def __init__(self, *arguments: str, parents: Sequence[str] = ()) -> None:
        command = [*parents, sys.executable, "-m", MODULE, *arguments]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.start_up = self._answer()

    def do(self, order: str, amount: float) -> float:
        """CPU seconds that it took."""
        assert self.process.stdin
        self.process.stdin.write(f"{order} {amount}\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> float:
        assert self.process.stdout
        return float(self.process.stdout.readline())


@pytest.fixture
def start(in_the_checkout: None) -> Iterator[Callable[..., Burner]]:
    started: list[Burner] = []

    def begin(*arguments: str, parents: Sequence[str] = ()) -> Burner:
        started.append(Burner(*arguments, parents=parents))
        return started[-1]

    yield begin
    for burner in started:
        with burner.process:
            burner.process.kill()


class Interval:
    """Least and greatest seconds between two readings, which are made with :meth:`read`."""

    def __init__(self) -> None:
        self._moments: list[tuple[float, float]] = []

    def read(self, reading: Callable[[], Any]) -> Any:
        before = time.perf_counter()
        found = reading()
        self._moments.append((before, time.perf_counter()))
        return found

    @property
    def least(self) -> float:
        return self._moments[-1][0] - self._moments[-2][1]

    @property
    def greatest(self) -> float:
        return self._moments[-1][1] - self._moments[-2][0]


def of(burner: Burner, samples: tuple[ProcessSample, ...]) -> ProcessSample:
    (found,) = (sample for sample in samples if sample.pid == burner.process.pid)
    return found


def test_cpu_and_memory_of_a_process_are_what_it_used(start: Callable[..., Burner]) -> None:
    burner = start()
    meter = ProcessMeter()
    burner.do("reserve", 500_000_000)
    before = of(burner, meter.read())
    assert before.memory < 200_000_000, "memory that was never written is not there"
    burner.do("allocate", 200_000_000)
    interval = Interval()
    after = of(burner, interval.read(meter.read))
    assert after.memory - before.memory == pytest.approx(200_000_000, rel=0.02)
    used = burner.do("burn", 0.5)
    burned = of(burner, interval.read(meter.read))
    assert burned.cpu * interval.least <= used * 1.02 + 2 * TICK
    assert burned.cpu * interval.greatest >= used * 0.98 - 2 * TICK
    assert (burned.name, before.name) == (MODULE, MODULE)


def test_a_process_that_began_since_the_last_reading_has_used_its_time_since_then(start: Callable[..., Burner]) -> None:
    interval = Interval()
    meter = interval.read(ProcessMeter)
    burner = start()
    used = burner.start_up + burner.do("burn", 0.3)
    found = of(burner, interval.read(meter.read))
    assert found.cpu * interval.least <= used * 1.1 + 2 * TICK
    assert found.cpu * interval.greatest >= used * 0.9 - 2 * TICK


def test_this_process_comes_first_and_one_that_has_ended_is_gone(start: Callable[..., Burner]) -> None:
    meter = ProcessMeter()
    burner = start()
    first, *_ = meter.read()
    assert first.pid == meter._root.pid
    burner.process.kill()
    burner.process.wait()
    assert burner.process.pid not in {sample.pid for sample in meter.read()}


def test_a_process_of_a_process_belongs_to_the_run(start: Callable[..., Burner]) -> None:
    before = {sample.pid for sample in ProcessMeter().read()}
    burner = start(parents=["sh", "-c", '"$0" "$@"; true'])
    began = {sample.pid for sample in ProcessMeter().read()} - before
    assert len(began) == 2
    assert burner.process.pid in began


def test_a_process_that_runs_another_program_has_its_name(in_the_checkout: None) -> None:
    """As one that was forked, and has its parent's name before."""
    meter = ProcessMeter()
    with subprocess.Popen(
        ["sh", "-c", f"read line; exec {sys.executable} -m {MODULE}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        names = [sample.name for sample in meter.read() if sample.pid == process.pid]
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        names += [sample.name for sample in meter.read() if sample.pid == process.pid]
        process.kill()
    assert names == ["sh", MODULE]


def test_a_core_was_busy_at_least_as_long_as_a_process_burned_on_it(start: Callable[..., Burner]) -> None:
    core = usable_cores()[-1]
    burner = start(str(core))
    interval = Interval()
    meter = interval.read(CoreMeter)
    used = burner.do("burn", 0.5)
    shares = interval.read(meter.read)
    assert all(0 <= share <= 1 for share in shares)
    assert shares[meter.cores.index(core)] * interval.greatest >= used - 3 * TICK


@pytest.mark.skipif(sys.platform != "linux", reason="writes what Linux shows")
def test_cores_are_told_by_their_numbers_where_others_are_switched_off(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    monkeypatch.setattr(cpu_meter, "usable_cores", lambda: [0, 2])

    def show(**clocks: tuple[int, int]) -> None:
        lines = [f"{name} {busy} 0 0 {idle} 0 0 0 0 0 0\n" for name, (busy, idle) in clocks.items()]
        (tmp_path / "stat").write_text("".join(["cpu 0 0 0 0 0 0 0 0 0 0\n", *lines]))

    show(cpu0=(0, 0), cpu2=(0, 0))
    meter = CoreMeter()
    show(cpu0=(25, 75), cpu2=(75, 25))
    assert (meter.cores, meter.read()) == ((0, 2), (0.25, 0.75))
    show(cpu0=(25, 75))
    assert meter.read() == (0.0, 0.0), "one was switched off meanwhile"


def test_busy_is_what_was_neither_idle_nor_waiting_for_a_disk() -> None:
    clocks = namedtuple("clocks", "user nice system idle iowait guest")
    before, after = clocks(10, 0, 5, 100, 1, 4), clocks(12, 1, 6, 105, 2, 6)
    # 2 + 1 + 1 of 2 + 1 + 1 + 5 + 1; guest time is user time already.
    assert cpu_meter._busy(before, after) == pytest.approx(0.4)
    assert cpu_meter._busy(before, before) == 0
