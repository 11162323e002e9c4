"""Pairs of kernels in two streams of an emulated GPU, against what its multiprocessors allow."""

import re

import pytest

from deeppool import figures
from deeppool.collocation.interference.measure import measure_interference
from deeppool.collocation.interference.pair_rates import measure_rates
from deeppool.collocation.interference.stream_bench import QUEUED, StreamBench
from deeppool.collocation.interference.synthetic_kernels import (
    KernelSpec,
    buffers,
    calibrate,
    kernel_sizes,
    kernel_specs,
    launcher,
)
from deeppool.device.emulated.device import new_device
from deeppool.device.find import find_device

SHORT, LONG = KernelSpec(1024, 2e-5), KernelSpec(1024, 1e-3)


def test_kernels_are_made_as_long_as_was_asked_for() -> None:
    device = new_device("h200")
    with device.times_only():
        held = buffers(device)
        run = launcher(LONG, held, calibrate(LONG, held, device))
        (graph,) = device.repeatable(lambda: [run() for _ in range(4)])
        device.synchronize()
        launch = device.stream("low").launch(graph)
        device.synchronize()
    # As many whole matrices as come closest.
    assert launch.seconds() / 4 == pytest.approx(LONG.seconds, rel=0.15)


@pytest.mark.slow
def test_a_short_kernel_keeps_its_speed_beside_a_long_one_only_by_its_priority() -> None:
    device = new_device("h200")
    with device.times_only(), StreamBench(device, [SHORT, LONG]) as bench:
        assert bench.arrangements == ["normal", "lowest"]
        rates, _ = measure_rates(bench, 2, seconds=0.03, rounds=1, report=lambda _: None)
    (normal, _), (lowest, background) = rates
    # As equals, one of each in turn: a short kernel waits for a long one, and a long one for a short one.
    assert normal[0, 1] < 0.1
    assert normal[1, 0] > 0.85
    assert normal[1, 1] == pytest.approx(0.5, abs=0.1)
    # With priority its blocks go before those that wait.
    assert lowest[1, 1] > 0.9
    assert lowest[0, 1] > 5 * normal[0, 1]
    assert background[1, 1] < 0.1


@pytest.mark.slow
def test_a_measurement_on_an_emulated_gpu_names_it() -> None:
    found = measure_interference(
        device="emulated:h200", matrices=[1024], durations=[2e-3], arrangements=["lowest"], seconds=0.08, rounds=1
    )
    assert (found.device_name, found.basis) == ("emulated NVIDIA H200 SXM", "emulated")
    assert "<b>emulated</b> on emulated NVIDIA H200 SXM" in figures.interference(found).layout.title.subtitle.text
    assert [beside.name for beside in found.arrangements] == ["lowest"]
    # The buffers hold no longer sums: 3 x 4 x 2^28 bytes, by its memory's 4.8 TB/s no less than 0.7 ms.
    assert re.search(r"; alone sums of 2 ms took 1(\.\d+)? ms$", found.method)
    assert found.waits is None


@pytest.mark.slow
def test_streams_of_a_device_in_the_machines_time_are_measured_too() -> None:
    with StreamBench(find_device("emulated"), [KernelSpec(16, 2e-4)], ["lowest"]) as bench:
        assert bench.alone(0, 0.2) > 0
        assert min(bench.together("lowest", 0, 0, 0.2)) >= 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rates"), [("emulated", [1.0, 2.0]), ("emulated:h200", [1.0, 1.0])])
def test_only_in_virtual_time_a_kernel_is_measured_alone_once(name, rates, monkeypatch) -> None:
    numbers = iter([1.0, 2.0])
    monkeypatch.setattr(StreamBench, "_measure", lambda *_: [next(numbers)])
    device = find_device(name)
    with device.times_only(), StreamBench(device, [KernelSpec(16, 2e-4)], ["lowest"]) as bench:
        assert [bench.alone(0, 0.2), bench.alone(0, 0.2)] == rates


def test_all_pairs_on_the_device_in_the_machines_time_take_about_a_minute() -> None:
    """By the seconds that are measured: 0.1 alone and 0.2 in each of two arrangements, a tenth more before each."""
    kinds = kernel_specs(kernel_sizes(find_device("emulated")))
    assert len(kinds) ** 2 * 3 * 1.1 * (0.1 + 2 * 0.2) < 65
    # What is queued behind a measurement ends soon beside it.
    assert QUEUED * max(kind.seconds for kind in kinds) < 0.2 / 10


@pytest.mark.slow
def test_a_measurement_in_the_machines_time_ends_with_every_pair() -> None:
    shares = list[float]()
    found = measure_interference(
        device="emulated",
        durations=[2e-4],
        seconds=0.1,
        rounds=1,
        on_progress=lambda _, share: shares.append(share),
    )
    assert [beside.name for beside in found.arrangements] == ["normal", "lowest"]
    assert all(len(rates) == 3 for beside in found.arrangements for rates in (beside.foreground, beside.background))
    assert shares == sorted(shares)
    assert len(shares) == 2 + 3 * 3
