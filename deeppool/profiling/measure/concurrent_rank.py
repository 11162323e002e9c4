"""Process that trains on another core while one core is measured.

Commands: ``setup`` (once), ``iterate`` with a batch, ``update`` after an iteration, ``exit``. Answers: ``ready``;
``done`` when an iteration or an update is over.
"""

import sys
from functools import cache

import torch

from deeppool.device.cpu import pin_to_core
from deeppool.device.find import find_device
from deeppool.device.heap import keep_memory
from deeppool.errors import DeeppoolError, RunError
from deeppool.graph.capture.capture import capture
from deeppool.graph.models.workloads import load_model
from deeppool.processes.managed_process import CommandChannel
from deeppool.profiling.measure.iteration import Iteration, TimestampLog, copy_weights, example_data
from deeppool.profiling.measure.update import UpdateBench


def main() -> None:
    """Serves commands until ``exit``."""
    try:
        serve(CommandChannel())
    except DeeppoolError as error:
        sys.exit(str(error))


def serve(commands: CommandChannel) -> None:
    """Serves commands until ``exit``."""
    setup = commands.next()
    pin_to_core(setup["core"])
    torch.set_num_threads(1)
    keep_memory()
    captured = capture(
        load_model(setup["model"], folder=setup["folder"]),
        {name: tuple(shape) for name, shape, _ in setup["inputs"]},
        input_dtype={name: getattr(torch, dtype) for name, _, dtype in setup["inputs"]},
        granularity=setup["granularity"],
    )
    if captured.graph.fingerprint != setup["fingerprint"]:
        raise RunError(
            f"{captured.graph.model} was captured with a custom loss, which other ranks lack (leave ranks out)"
        )
    device = find_device("cpu")
    iteration = Iteration(captured, copy_weights(captured, device), stamped=False)

    @cache
    def data(batch: int) -> list[torch.Tensor]:
        return example_data(captured, batch, device)

    @cache
    def update() -> UpdateBench:
        return UpdateBench(iteration.parameters, device)

    commands.answer("ready")
    with device.arithmetic(setup["precision"]):
        while (message := commands.next())["command"] != "exit":
            if message["command"] == "update":
                update().step()
            else:
                iteration.run(data(message["batch"]), TimestampLog(lambda: None), setup["precision"])
            commands.answer("done")


if __name__ == "__main__":
    main()
