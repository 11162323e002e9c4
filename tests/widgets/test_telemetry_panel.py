"""The panel's arithmetic, and the panel itself without a browser."""

import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from deeppool import widgets
from deeppool.figures.telemetry import GIB, busy, memory
from deeppool.telemetry.record import GpuSample, ProcessSample, Sample, Telemetry
from deeppool.telemetry.sampler import Sampler
from deeppool.widgets.telemetry_panel import SHOWN, describe
from tests.telemetry.test_sampler import Seen
from tests.widgets.interleaved_threads import TIMEOUT, InterleavedCall, WatchedLock


def telemetry(count: int = 2, gpu_problem: str | None = None) -> Telemetry:
    gpu = GpuSample(memory=2 * GIB, utilisation=0.9, sm_activity=0.4, power=321.0, energy=10.0)
    processes = (ProcessSample(7, "<launcher>", GIB, 0.1), ProcessSample(8, "rank", GIB, 0.9))
    gpus = () if gpu_problem else (gpu,)
    samples = tuple(Sample(float(n), gpus, (0.5,), 3 * GIB, processes) for n in range(count))
    return Telemetry("", 0.5, () if gpu_problem else ("H200",), gpu_problem, (1,), samples)


def test_lines_of_gpus_and_cores() -> None:
    assert busy(telemetry()) == {"GPU 0": [90, 90], "GPU 0, multiprocessors": [40, 40], "core 1": [50, 50]}
    assert memory(telemetry()) == {"GPU 0, memory": [2, 2], "this run": [2, 2], "available": [3, 3]}


def test_only_the_newest_samples_are_drawn() -> None:
    sampler = SimpleNamespace(telemetry=lambda: telemetry(SHOWN + 5), watch=lambda on_sample: None)
    panel = widgets.TelemetryPanel(sampler)
    assert {tuple(line.x) for line in panel.figure.data} == {tuple(range(5, SHOWN + 5))}
    assert {len(line.y) for line in panel.figure.data} == {SHOWN}


def test_words_name_the_problem_or_the_power_and_the_busiest_process_first() -> None:
    assert describe(telemetry()).split("<br>") == [
        f"at {telemetry().samples[-1].time:.1f} s:",
        "GPU 0 (H200): 321 W, 10 J so far",
        "rank (8): 0.90 cores, 1.0 GiB",
        "&lt;launcher&gt; (7): 0.10 cores, 1.0 GiB",
    ]
    assert describe(telemetry(0, "no NVIDIA driver")) == "no GPU: no NVIDIA driver<br>no sample yet"


def test_a_panel_follows_its_sampler_and_its_button_ends_it() -> None:
    with Sampler(0.05) as sampler:
        panel = widgets.TelemetryPanel(sampler)
        figure, message, stop = panel.figure, panel.status, panel.stop
        # Watches after the panel: what it sees is drawn.
        Seen(sampler).wait(3)
        stop.click()
        assert stop.disabled
        samples = len(sampler.telemetry().samples)
        assert samples >= 3
        assert {len(trace.x) for trace in figure.data} == {min(samples, SHOWN)}
        assert "this run" in {trace.name for trace in figure.data}
        assert "MiB" in message.value


class Scripted:
    """A sampler that calls its watchers when it is told to."""

    def __init__(self) -> None:
        self.now = telemetry(1, "no NVIDIA driver")
        self.watchers: list[Callable[[], None]] = []
        self.is_closed = False

    def telemetry(self) -> Telemetry:
        return self.now

    def watch(self, on_sample: Callable[[], None]) -> None:
        self.watchers.append(on_sample)

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("what", ["a sample", "the theme"])
def test_what_is_drawn_while_another_thread_hears_the_page_reaches_the_page(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = Scripted()
    panel, turn, told = widgets.TelemetryPanel(sampler), WatchedLock(), []
    sampler.now = telemetry()

    def act() -> None:
        if what == "a sample":
            sampler.watchers[0]()
        else:
            panel.dark = True

    monkeypatch.setitem(panel.figure.__dict__, "_turn", turn)
    panel.figure.observe(
        lambda change: told.append(change.new), "_py2js_addTraces" if what == "a sample" else "_py2js_update"
    )
    interrupted = InterleavedCall(panel.figure.set_trait, act, turn)
    monkeypatch.setattr(panel.figure, "set_trait", interrupted)
    panel.figure.set_state({"_js2py_layoutDelta": {"layout_delta": {}, "layout_edit_id": 0}})
    interrupted.thread.join(TIMEOUT)
    # Three lines of a GPU, or one template; None ends each message.
    assert [message is not None for message in told] == [True, False] * (3 if what == "a sample" else 1)


def test_a_closed_panel_ends_its_own_sampler_and_no_other() -> None:
    before = set(threading.enumerate())
    panel = widgets.TelemetryPanel()
    panel.close()
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name == "deeppool telemetry"]
    given = Scripted()
    widgets.TelemetryPanel(given).close()
    assert not given.is_closed
