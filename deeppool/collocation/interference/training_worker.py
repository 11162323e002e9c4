"""A process that trains a model on one core, and may wait after some layers, as if for another rank.

``setup`` (once) has the model, its batch and, for each of its runs, the seconds of a wait and of the work before it.
The other commands and answers are those of ``kernel_worker``: a run is given by its number, and counts steps.
"""

import time
from collections.abc import Callable
from functools import partial

import torch

from deeppool.collocation.interference.kernel_worker import serve
from deeppool.device.cpu import lower_priority, pin_to_core
from deeppool.device.heap import keep_memory
from deeppool.graph.models.libraries import torchvision_model
from deeppool.processes.managed_process import CommandChannel

SHAPE = (3, 64, 64)
WARMUP_STEPS = 3
"""Training steps before the process is ready."""


def main() -> None:
    """Executes commands until ``exit``."""
    commands = CommandChannel()
    setup = commands.next()
    pin_to_core(setup["core"])
    torch.set_num_threads(1)
    keep_memory()
    rest = PeriodicSleep()
    step = training(setup["model"], setup["batch"], rest)
    for _ in range(WARMUP_STEPS):
        step()
    lower_priority(setup["priority"])
    commands.answer("ready")
    serve(commands, [partial(_step, rest, wait, work, step) for wait, work in setup["rests"]])


def _step(rest: "PeriodicSleep", wait: float, work: float, step: Callable[[], None]) -> None:
    rest.wait, rest.work = wait, work
    step()


class PeriodicSleep:
    """Hook of a module that waits after a layer, if there was enough work since the last wait."""

    def __init__(self) -> None:
        """Starts without waits."""
        self.wait, self.work, self._last = 0.0, 0.0, time.perf_counter()

    def __call__(self, *_: object) -> None:
        """Waits where a wait is due."""
        if self.wait and time.perf_counter() - self._last > self.work:
            time.sleep(self.wait)
            self._last = time.perf_counter()


def training(name: str, batch: int, rest: Callable[..., None]) -> Callable[[], None]:
    """Returns a function for one step of a torchvision model that calls ``rest`` before and after convolutions."""
    build, _ = torchvision_model(name)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    samples, labels = torch.randn(batch, *SHAPE), torch.zeros(batch, dtype=torch.long)
    convolutions = [module for module in model.modules() if isinstance(module, torch.nn.Conv2d)]
    for index, module in enumerate(convolutions):
        module.register_forward_hook(rest)
        # The samples need no gradient, which torch warns of at a backward hook of the first one.
        if index:
            module.register_full_backward_pre_hook(rest)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(samples), labels).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
