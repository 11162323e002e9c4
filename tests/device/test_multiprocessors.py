"""Thread blocks on multiprocessors: drawn schedules, and laws that hold for drawn sets of kernels."""

import math
import random

import pytest

from deeppool.device.multiprocessors import KernelWork, Multiprocessors, ResidentKernel


def run(device: Multiprocessors, arrivals: dict[float, list[tuple[str, KernelWork, dict]]]) -> dict[str, float]:
    """Ends of kernels by name, which start at given times."""
    names: dict[ResidentKernel, str] = {}
    ends: dict[str, float] = {}

    def until(time: float) -> None:
        while (following := device.next_time()) <= time and following < math.inf:
            for kernel in device.advance(following):
                ends[names[kernel]] = device.now
        if time < math.inf:
            device.advance(time)

    for time, kernels in sorted(arrivals.items()):
        until(time)
        for name, work, options in kernels:
            names[device.start(work, **options)] = name
    until(math.inf)
    return ends


HIGH = {"high": True}


def test_a_kernel_alone_takes_its_latency_and_its_waves() -> None:
    work = KernelWork(0.5, blocks=9, block_seconds=1.0)
    assert run(Multiprocessors(4, 1.0), {0.0: [("a", work, {})]}) == {"a": 3.5}


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1e-5])
def test_kernels_end_also_when_the_clock_tells_no_short_times_apart(seconds: float) -> None:
    device = Multiprocessors(1, 1.0, now=2.0**20)
    kernel = device.start(KernelWork(0.0, blocks=1, block_seconds=seconds))
    assert device.advance(device.next_time()) == [kernel]


def test_a_kernel_without_blocks_takes_its_latency_beside_a_full_device() -> None:
    ends = run(
        Multiprocessors(1, 1.0), {0.0: [("full", KernelWork(0, 1, 5.0), {})], 1.0: [("copy", KernelWork(2.0), {})]}
    )
    assert ends == {"copy": 3.0, "full": 5.0}


def test_waiting_blocks_of_high_priority_come_first_and_running_ones_are_not_stopped() -> None:
    #  low  0 0 0 0 . 3 3 .        2 multiprocessors, 3 waves of 2 blocks of 2 s
    #  high . . . h h              arrives at 1: waits until 2, then goes before the third wave's blocks
    low, high = KernelWork(0, 6, 2.0), KernelWork(0, 2, 1.0)
    ends = run(Multiprocessors(2, 1.0), {0.0: [("low", low, {})], 1.0: [("high", high, HIGH)]})
    assert ends == {"high": 3.0, "low": 7.0}


def test_at_equal_priority_a_kernel_waits_until_all_blocks_of_an_earlier_one_are_placed() -> None:
    first, second = KernelWork(0, 6, 2.0), KernelWork(0, 2, 1.0)
    ends = run(Multiprocessors(2, 1.0), {0.0: [("first", first, {})], 1.0: [("second", second, {})]})
    assert ends == {"first": 6.0, "second": 7.0}


def test_a_small_kernel_leaves_multiprocessors_to_the_next() -> None:
    kernels = [("a", KernelWork(0, 3, 1.0), HIGH), ("b", KernelWork(0, 2, 1.0), {})]
    assert run(Multiprocessors(4, 1.0), {0.0: kernels}) == {"a": 1.0, "b": 2.0}


def test_a_share_bounds_the_multiprocessors_of_one_kernel_and_takes_none_from_another() -> None:
    kernels = [("kept", KernelWork(0, 6, 1.0), {"limit": 2}), ("free", KernelWork(0, 2, 1.0), {})]
    assert run(Multiprocessors(4, 1.0), {0.0: kernels}) == {"free": 1.0, "kept": 3.0}
    wide = KernelWork(0, 4, 1.0)
    assert run(Multiprocessors(4, 1.0), {0.0: [("free", wide, {})], 0.5: [("kept", wide, {"limit": 2})]}) == {
        "free": 1.0,
        "kept": 3.0,
    }


def test_bandwidth_is_shared_by_multiprocessor_and_a_kernel_that_needs_little_is_not_slowed() -> None:
    device = Multiprocessors(4, bandwidth=4.0)
    hungry, modest = KernelWork(0, 2, 1.0, block_bandwidth=2.0), KernelWork(0, 2, 1.0, block_bandwidth=0.5)
    # Modest blocks get their 0.5 each; 3 are left for two hungry ones that need 4. Alone at the end, they speed up.
    ends = run(device, {0.0: [("hungry", hungry, {}), ("modest", modest, {})]})
    assert ends["modest"] == 1.0
    assert ends["hungry"] == pytest.approx(1.0 + 0.25)


def test_an_arrival_between_waves_sees_the_blocks_that_have_not_begun_as_waiting() -> None:
    """Whole waves of a kernel alone are one step of the model; one that begins at the arrival's time has begun."""
    for time, ends in ((3.0, {"high": 5.0, "low": 6.0}), (2.5, {"high": 4.0, "low": 6.0})):
        kernels = {0.0: [("low", KernelWork(0, 5, 1.0), {})], time: [("high", KernelWork(0, 1, 1.0), HIGH)]}
        assert run(Multiprocessors(1, 1.0), kernels) == ends


def drawn(seed: int) -> dict[float, list[tuple[str, KernelWork, dict]]]:
    draw = random.Random(seed)
    found: dict[float, list[tuple[str, KernelWork, dict]]] = {}
    for number in range(draw.randint(2, 8)):
        work = KernelWork(
            draw.choice([0, 0.3]), draw.randint(0, 30), draw.choice([0.2, 1, 1.7]), draw.choice([0, 0.5, 2])
        )
        options = {"high": draw.random() < 0.5, "limit": draw.choice([None, None, 2])}
        # Hundredths of their own: no kernel arrives just when a block of another ends.
        found[draw.choice([0.0, 0.5, 1.3, 4.0]) + number / 100] = [(f"k{number}", work, options)]
    return found


@pytest.mark.parametrize("seed", range(15))
def test_blocks_are_neither_lost_nor_repeated_whatever_the_steps(seed: int) -> None:
    """An oracle that moves in small steps, block by block, on a device whose bandwidth is enough for all."""
    arrivals = drawn(seed)
    device = Multiprocessors(4, bandwidth=1e9)
    assert run(device, arrivals) == pytest.approx(block_by_block(4, arrivals), abs=1e-6)
    blocks = sum(work.blocks * work.block_seconds for kernels in arrivals.values() for _, work, _ in kernels)
    assert device.busy == pytest.approx(blocks)


@pytest.mark.parametrize("seed", range(15))
def test_no_kernel_ends_before_it_could_alone(seed: int) -> None:
    arrivals = drawn(seed)
    ends = run(Multiprocessors(4, bandwidth=3.0), arrivals)
    for time, kernels in arrivals.items():
        for name, work, options in kernels:
            waves = math.ceil(work.blocks / (options["limit"] or 4))
            assert ends[name] >= time + work.latency + waves * work.block_seconds - 1e-6


def block_by_block(multiprocessors: int, arrivals: dict[float, list[tuple[str, KernelWork, dict]]]) -> dict[str, float]:
    """Ends of kernels: each multiprocessor holds a block until a time; all times are multiples of 0.01."""
    step = 0.01
    kernels = [
        {"name": name, "from": round((time + work.latency) / step), "left": work.blocks, "work": work, "start": time}
        | {"key": (not options["high"], time), "limit": options["limit"] or multiprocessors}
        for time, started in sorted(arrivals.items())
        for name, work, options in started
    ]
    kernels.sort(key=lambda kernel: kernel["key"])
    until: list[tuple[int, dict]] = []
    ends: dict[str, float] = {}
    for tick in range(100_000):
        until = [(end, kernel) for end, kernel in until if end > tick]
        for kernel in kernels:
            held = sum(owner is kernel for _, owner in until)
            while kernel["left"] and kernel["from"] <= tick and len(until) < multiprocessors and held < kernel["limit"]:
                until.append((tick + round(kernel["work"].block_seconds / step), kernel))
                kernel["left"] -= 1
                held += 1
            if not held and not kernel["left"] and kernel["from"] <= tick and kernel["name"] not in ends:
                ends[kernel["name"]] = tick * step
        if len(ends) == len(kernels):
            return ends
    raise AssertionError("the kernels do not end")
