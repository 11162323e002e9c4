"""The panel's arithmetic, and the panel itself without a browser."""

from deeppool import widgets
from deeppool.figures.telemetry import GIB, busy, memory
from deeppool.telemetry.record import GpuSample, ProcessSample, Sample, Telemetry
from deeppool.telemetry.sampler import Sampler
from deeppool.widgets.telemetry_panel import SHOWN, describe
from tests.telemetry.test_sampler import Seen


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
    assert {len(line) for line in busy(telemetry(SHOWN + 5), SHOWN).values()} == {SHOWN}


def test_words_name_the_problem_or_the_power_and_the_busiest_process_first() -> None:
    assert describe(telemetry()).split("<br>") == [
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
