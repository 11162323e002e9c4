"""Seconds of kernels: against the closed form of each term, and in the physically expected order."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from deeppool.device.datasheet import GPUS, find_gpu
from deeppool.device.kernels import Kernel
from deeppool.device.roofline import FITTED, Columns, naive_seconds
from deeppool.errors import InvalidValueError

A100 = find_gpu("a100-40")
# Everything but the part under test costs nothing.
FREE = replace(
    FITTED, launch=0.0, memory=1.0, cache=1e9, depth=1e9, weights=1.0, pointwise_weights=0.5, window_reads=1e9
)


def seconds(kernel, gpu=A100, efficiency=FREE, **options):
    return float(efficiency.seconds(Columns.of([kernel]), gpu, **options)[0])


def product(rows, columns, depth, count=1, element_size=4):
    return Kernel("mm", "product", 0, 2 * rows * columns * depth * count, rows, columns, count, element_size)


def test_a_memory_kernel_takes_its_launch_and_its_bytes():
    kernel = Kernel("add", "memory", 10**9)
    assert seconds(kernel) == pytest.approx(10**9 / 1.555e12)
    fitted = FITTED.launch + 10**9 / (1.555e12 * FITTED.memory)
    assert seconds(kernel, efficiency=FITTED) == pytest.approx(fitted)


def test_a_full_wave_of_tiles_runs_at_the_peak_and_one_tile_more_takes_as_long_as_another_wave():
    # 108 tiles of 256 x 128, one for each multiprocessor.
    full = product(108 * 256, 128, 1000)
    assert seconds(full, tf32=True) == pytest.approx(full.flops / 156e12)
    one_more = seconds(product(108 * 256 + 1, 128, 1000), tf32=True)
    # Of 64 x 64 tiles, an eighth as long and no worse with a free cache, there were 8 waves, and are 9.
    assert one_more == pytest.approx(9 / 8 * seconds(full, tf32=True))


def test_a_product_of_few_operations_takes_as_long_as_its_bytes_and_a_convolution_adds_the_two():
    kernel = replace(product(108 * 256, 128, 1000), bytes=10**9)
    moved, multiplied = 10**9 / 1.555e12, kernel.flops / 156e12
    assert moved > multiplied
    assert seconds(kernel, tf32=True) == pytest.approx(moved)
    assert seconds(replace(kernel, kind="convolution")) == pytest.approx(moved + multiplied)


def test_products_and_convolutions_of_fp32_numbers_use_the_tensor_cores_as_tf32():
    kernel = product(108 * 256, 128, 1000)
    for same in (kernel, replace(kernel, kind="convolution")):
        assert seconds(same, tf32=False) == pytest.approx(kernel.flops / 19.5e12)
        assert seconds(same, tf32=True) == pytest.approx(kernel.flops / 156e12)
    assert seconds(replace(kernel, element_size=2)) == pytest.approx(kernel.flops / 312e12)


def test_a_deep_product_of_one_tile_is_split_over_the_multiprocessors_down_to_the_least_depth():
    tile = product(256, 128, 108 * 50)
    alone = tile.flops / (156e12 / 108)
    assert seconds(tile, tf32=True) == pytest.approx(alone / 8)  # without a split: eight tiles of 64 x 64
    split = seconds(tile, efficiency=replace(FREE, depth=50), tf32=True)
    assert split == pytest.approx(tile.flops / 156e12)
    shallow = seconds(tile, efficiency=replace(FREE, depth=540), tf32=True)
    assert shallow == pytest.approx(alone / 8 / 10)


def test_tiles_that_the_cache_cannot_feed_take_as_long_as_their_factors():
    slow = replace(FREE, cache=8.0)
    kernel = product(108 * 256, 128, 1000)
    fetched = 1000 * (256 + 128) * 4
    assert seconds(kernel, efficiency=slow, tf32=True) == pytest.approx(fetched / (8.0 * 1.41e9))


def test_a_convolution_moves_its_bytes_changes_its_layouts_and_then_multiplies():
    kernel = Kernel("convolution", "convolution", 10**6, 0, 1, 1, layout_bytes=10**6, weight_bytes=10**6)
    # A read and a write of the activations and of the weights beside the bytes themselves.
    assert seconds(kernel) == pytest.approx((1 + 2 + 2) * 10**6 / 1.555e12)
    assert seconds(replace(kernel, pointwise=True)) == pytest.approx((1 + 2 + 4) * 10**6 / 1.555e12)


def test_pooling_takes_the_time_of_its_reads_if_they_outweigh_its_bytes():
    kernel = Kernel("avg_pool2d", "window", 1000, window_reads=10**9)
    assert seconds(kernel, efficiency=replace(FREE, window_reads=4)) == pytest.approx(10**9 / (4 * 108 * 1.41e9))
    back = replace(kernel, operator="avg_pool2d_backward")
    assert seconds(back, efficiency=replace(FREE, window_reads_backward=1)) == pytest.approx(10**9 / (108 * 1.41e9))


def test_the_naive_roofline_is_the_longer_of_flops_and_bytes_at_the_peaks():
    columns = Columns.of([replace(product(100, 100, 100), bytes=10**6), Kernel("add", "memory", 10**6)])
    found = naive_seconds(columns, A100)
    assert found == pytest.approx([max(2e6 / 19.5e12, 1e6 / 1.555e12), 1e6 / 1.555e12])


def test_more_work_never_takes_less_time():
    generator = np.random.default_rng(0)
    for _ in range(300):
        rows, columns, depth = (int(x) for x in generator.integers(1, 5000, 3))
        kernel = replace(product(rows, columns, depth), kind=str(generator.choice(["product", "convolution"])))
        for more in (
            product(rows + int(generator.integers(1, 300)), columns, depth),
            product(rows, columns, depth + int(generator.integers(1, 300))),
        ):
            larger = replace(more, kind=kernel.kind)
            for gpu in GPUS.values():
                assert seconds(kernel, gpu, FITTED) <= seconds(larger, gpu, FITTED) * (1 + 1e-12)


def test_a_newer_gpu_is_faster_at_everything():
    kernels = [product(3000, 3000, 3000), product(64, 64, 4096, 16, 2), Kernel("add", "memory", 10**8)]
    times = [FITTED.seconds(Columns.of(kernels), gpu) for gpu in GPUS.values()]
    assert list(GPUS) == ["a100-40", "a100-80", "h100", "h200"]
    for slower, faster in pairwise(times):
        assert (faster <= slower).all()


def test_the_clock_of_a_data_sheet_is_that_of_its_peak():
    for gpu in GPUS.values():
        operations = 2048 if "A100" in gpu.title else 4096
        assert gpu.clock == pytest.approx(gpu.half / (gpu.multiprocessors * operations), rel=2e-3)


def test_an_unknown_gpu_raises_with_the_known_ones():
    with pytest.raises(
        InvalidValueError, match=r"the GPU 'v100' is known; gpu must be one of a100-40, a100-80, h100, h"
    ):
        find_gpu("v100")
