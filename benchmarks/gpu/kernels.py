"""Single kernels beside each other: who disturbs whom (figure 12 of DeepPool's paper), and which priority counts."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from deeppool.device.protocol import Device, Stream

SIZES = {"matmul, short": 512, "matmul, long": 4096, "copy, short": 1 << 20, "copy, long": 1 << 27}
"""Edge of the matrices; floats that are copied."""
QUICK_SIZES = {"matmul, short": 16, "matmul, long": 64, "copy, short": 1 << 10, "copy, long": 1 << 14}
PER_GRAPH = 10
"""Kernels in a graph: enough that its launch is not what is measured."""
POLL_SECONDS = 2e-5


def interference(device: Device, *, quick: bool) -> list[dict[str, Any]]:
    """Per pair, repetitions per second of the foreground kernel as a share of those alone."""
    sizes, seconds = (QUICK_SIZES, 0.02) if quick else (SIZES, 1.0)
    front, back = device.stream("high"), device.stream("low")
    fronts = {name: captured(work(name, size, device), front, device) for name, size in sizes.items()}
    backs = {name: captured(work(name, size, device), back, device) for name, size in sizes.items()}
    found = []
    for name, foreground in fronts.items():
        alone = rate(foreground, front, seconds)
        for other, background in backs.items():
            with repeating(background, back):
                beside = rate(foreground, front, seconds)
            found.append({"foreground": name, "background": other, "share_of_alone": beside / alone})
    return found


def priorities(device: Device, *, quick: bool) -> list[dict[str, Any]]:
    """Seconds of a short graph behind a long queue of another, by the priorities that captured it and that replay it.

    The capturing one counts if it alone decides.
    """
    sizes, queue = (QUICK_SIZES, 5) if quick else (SIZES, 50)
    other = device.stream("low")
    long = captured(work("matmul, long", sizes["matmul, long"], device), other, device)
    found = []
    for capturing in ("high", "low"):
        short = captured(work("matmul", sizes["matmul, short"], device), device.stream(capturing), device)
        for replaying in ("high", "low"):
            stream = device.stream(replaying)
            device.synchronize()
            for _ in range(queue):
                other.launch(long)
            launch = stream.launch(short)
            device.synchronize()
            found.append({"captured": capturing, "replayed": replaying, "seconds": launch.seconds()})
    return found


def work(name: str, size: int, device: Device) -> Callable[[], None]:
    """Some kernels one after another, which leave nothing behind."""
    place = device.torch_device()
    if name.startswith("matmul"):
        a, product = torch.randn(size, size, device=place), torch.empty(size, size, device=place)
        kernel: Callable[[], Any] = lambda: torch.mm(a, a, out=product)  # noqa: E731
    else:
        source, target = torch.randn(size, device=place), torch.empty(size, device=place)
        kernel = lambda: target.copy_(source)  # noqa: E731

    def several() -> None:
        for _ in range(PER_GRAPH):
            kernel()

    return several


def captured(work: Callable[[], None], stream: Stream, device: Device) -> Callable[[], None]:
    with stream.current():
        (graph,) = device.repeatable(work)
    device.synchronize()

    def replay(graph: Callable[[], None] = graph, owner: Callable[[], None] = work) -> None:
        # A graph does not keep the memory that it reads and writes; its work does.
        assert owner
        graph()

    return replay


def rate(graph: Callable[[], None], stream: Stream, seconds: float) -> float:
    """Repetitions per second, each begun when the one before is done."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() < started + seconds:
        launch = stream.launch(graph)
        while not launch.done():
            time.sleep(POLL_SECONDS)
        count += 1
    return count / (time.perf_counter() - started)


@contextmanager
def repeating(graph: Callable[[], None], stream: Stream) -> Iterator[None]:
    """Repeats a graph in a thread during the block; two are in flight, so that the device always has the next."""
    stopping = threading.Event()

    def repeat() -> None:
        in_flight = deque([stream.launch(graph)])
        while not stopping.is_set():
            in_flight.append(stream.launch(graph))
            launch = in_flight.popleft()
            while not launch.done():
                time.sleep(POLL_SECONDS)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
