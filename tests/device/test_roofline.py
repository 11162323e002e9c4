"""Seconds of kernels: against the closed form of each term, and in the physically expected order."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.estimates.naive import naive_seconds
from deeppool.base import serialization
from deeppool.device.datasheet import GPUS, Reach, find_gpu, gpu_sheet
from deeppool.device.kernel import Kernel
from deeppool.device.roofline import FITTED, Columns
from deeppool.errors import DocumentError, InvalidValueError

A100 = replace(find_gpu("a100-40"), reach=Reach(1.0, 1.0, 1.0, 1.0))
# Everything but the part under test costs nothing.
FREE = replace(FITTED, launch=0.0, cache=1e9, depth=1e9, weights=1.0, pointwise_weights=0.5, window_reads=1e9)


def seconds(kernel, gpu=A100, efficiency=FREE, **options):
    return float(efficiency.seconds(Columns.of([kernel]), gpu, **options)[0])


def product(rows, columns, depth, count=1, element_size=4):
    return Kernel("mm", "product", 0, 2 * rows * columns * depth * count, rows, columns, count, element_size)


def test_a_memory_kernel_takes_its_launch_and_its_bytes():
    kernel = Kernel("add", "memory", 10**9)
    assert seconds(kernel) == pytest.approx(10**9 / 1.555e12)
    slower = replace(A100, reach=replace(A100.reach, bandwidth=0.8))
    assert seconds(kernel, slower, FITTED) == pytest.approx(FITTED.launch + 10**9 / (1.555e12 * 0.8))


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
    # Kernels without tensor cores take the layout as it is.
    assert seconds(kernel, tf32=False) == pytest.approx(10**6 / 1.555e12)
    assert seconds(replace(kernel, element_size=2), tf32=False) == pytest.approx(5 * 10**6 / 1.555e12)
    volta = replace(find_gpu("v100"), reach=A100.reach)
    assert seconds(kernel, volta) == pytest.approx(10**6 / 900e9)


def test_pooling_takes_the_time_of_its_reads_if_they_outweigh_its_bytes():
    kernel = Kernel("avg_pool2d", "window", 1000, window_reads=10**9)
    assert seconds(kernel, efficiency=replace(FREE, window_reads=4)) == pytest.approx(10**9 / (4 * 108 * 1.41e9))
    back = replace(kernel, operator="avg_pool2d_backward")
    assert seconds(back, efficiency=replace(FREE, window_reads_backward=1)) == pytest.approx(10**9 / (108 * 1.41e9))


def test_depthwise_convolutions_take_their_bytes_and_the_gradients_of_their_weights_the_reads_of_their_windows():
    kernels = [
        Kernel(f"convolution{part}", "depthwise", 10**6, 10**9, window_reads=10**9)
        for part in ("", "_backward_data", "_backward_weight")
    ]
    found = [seconds(kernel, efficiency=replace(FREE, depthwise_weight=2.0)) for kernel in kernels]
    assert found == pytest.approx([10**6 / 1.555e12, 10**6 / 1.555e12, 10**9 / (2 * 108 * 1.41e9)])


def test_what_is_read_again_comes_from_memory_only_where_the_cache_does_not_hold_it():
    # Rows of 4 KB: 16 on each of 108 multiprocessors are 7 MB, less than half of 40 MB; rows of 16 KB are 28 MB.
    short, long = (
        Kernel("native_layer_norm", "memory", 10**9, again_bytes=5 * 10**8, row_bytes=size) for size in (4096, 16384)
    )
    assert seconds(short) == pytest.approx(10**9 / 1.555e12)
    assert seconds(long) == pytest.approx(1.5e9 / 1.555e12)
    # A batch normalisation reads all before it reads anything again, but a small one is held.
    for size, passes in ((10**9, 1.5), (10**7, 1.0)):
        found = seconds(Kernel("native_batch_norm", "memory", size, again_bytes=size // 2))
        assert found == pytest.approx(passes * size / 1.555e12)


@pytest.mark.parametrize(("precision", "peak"), [("fp32", 19.5e12), ("tf32", 156e12), ("half", 312e12)])
def test_a_gpu_reaches_a_share_of_its_peak_in_each_precision(precision, peak):
    gpu = replace(A100, reach=replace(A100.reach, **{precision: 0.5}))
    kernel = product(108 * 256, 128, 1000, element_size=2 if precision == "half" else 4)
    assert seconds(kernel, gpu, tf32=precision == "tf32") == pytest.approx(kernel.flops / (0.5 * peak))


def test_the_naive_roofline_is_the_longer_of_flops_and_bytes_at_the_peaks():
    columns = Columns.of([replace(product(100, 100, 100), bytes=10**6), Kernel("add", "memory", 10**6)])
    found = naive_seconds(columns, A100)
    assert found == pytest.approx([max(2e6 / 19.5e12, 1e6 / 1.555e12), 1e6 / 1.555e12])


@pytest.mark.slow
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
    for names in (("a100-40", "a100-80", "h100", "h200"), ("rtx3090", "rtx4090"), ("l4", "l40s")):
        times = [FITTED.seconds(Columns.of(kernels), find_gpu(name)) for name in names]
        for slower, faster in pairwise(times):
            # A rounded clock feeds the cache of one a little slower.
            assert (faster <= slower * 1.001).all()


OPERATIONS = {
    "V100": 1024,
    "A100": 2048,
    "H100": 4096,
    "H200": 4096,
    "B200": 8192,
    "RTX": 512,
    "L4": 1024,
    "L40S": 1024,
}
"""Half-precision operations a cycle and multiprocessor, with sums in fp32: architecture white papers."""


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_the_clock_of_a_data_sheet_is_that_of_its_peak(gpu):
    (operations,) = {count for word, count in OPERATIONS.items() if word in gpu.title.replace("-", " ").split()}
    assert gpu.clock == pytest.approx(gpu.half / (gpu.multiprocessors * operations), rel=3e-3)
    assert gpu.fp32 <= (gpu.tf32 or gpu.fp32) <= gpu.half


def test_a_data_sheet_of_ones_own_is_a_file(tmp_path):
    own = replace(find_gpu("l4"), name="own", title="A GPU of my own", bandwidth=1e12)
    assert gpu_sheet(serialization.write(own, tmp_path / "own.json")) == own
    assert gpu_sheet("L4") == find_gpu("l4")
    text = (tmp_path / "own.json").read_text(encoding="utf-8")
    (tmp_path / "own.json").write_text(
        text.replace('"bandwidth": 1000000000000.0', '"bandwidth": -1.0'), encoding="utf-8"
    )
    with pytest.raises(DocumentError, match=r"own\.json.*bandwidth of GPU 'own' must be positive"):
        gpu_sheet(tmp_path / "own.json")


def test_an_unknown_gpu_raises_with_the_known_ones():
    with pytest.raises(
        InvalidValueError, match=r"the GPU 'k80' is known; gpu must be one of a100-40, a100-80, h100, h"
    ):
        find_gpu("k80")
