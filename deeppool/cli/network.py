"""The ``deeppool network`` command."""

import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deeppool.cli.options import AsJson, numbers
from deeppool.cli.output import progress, show
from deeppool.errors import InvalidValueError
from deeppool.processes.fork_server_client import import_and_fork

if TYPE_CHECKING:
    from deeppool.cluster.cluster import Cluster


def network(
    output: Annotated[Path, typer.Option("-o", "--output", help="File for the cluster (JSON).")],
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes to start on this machine. Default: the number of GPUs or cores, at least 2."),
    ] = None,
    backend: Annotated[
        Literal["auto", "gloo", "nccl"],
        typer.Option(help="gloo for CPU ranks, NCCL for GPUs; auto selects NCCL if there are GPUs."),
    ] = "auto",
    sizes: Annotated[
        str | None,
        typer.Option(
            help="Message sizes in bytes, for example 4,4096,67108864. Default: all powers of two from 4 B to 64 MiB."
        ),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            help="Duration of the measurement; at least 9 runs of every size, but none of one above 1 MiB "
            "whose 9 runs alone would take longer, and over 3 seconds."
        ),
    ] = 30.0,
    schedules: Annotated[
        bool,
        typer.Option("--schedules", help="Measure all-reduces by every schedule, too, for trainings to choose from."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure transfers and all-reduces between ranks, and save them as a cluster file for the planner.

    Measures one-way transfers between two ranks, and all-reduces of 2, 3, 4 … ranks. Plans for the cluster interpolate
    the measured all-reduces, and use a linear fit of the transfers.

    Example: `deeppool network --ranks 2 -o mine.json`

    Use the file: `deeppool plan vgg16.json --gpus 2 --global-batch 16 --cluster mine.json`

    On several nodes, run the command under torchrun on each node; rank 0 saves the file: `torchrun --nnodes 2
    --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST -m deeppool.cli network -o mine.json`

    Ctrl-C ends every process without saving.
    """
    from deeppool.base import serialization
    from deeppool.processes.torchrun import started_by_torchrun

    if not started_by_torchrun():
        import_and_fork("deeppool.profiling.network.measure", "deeppool.profiling.network.rank")
    from deeppool.profiling.network.measure import SIZES, join_measurement, measure_network

    joining = started_by_torchrun()
    if joining and os.environ["RANK"] == "0":
        serialization.check_writable(output)  # without torchrun it was checked
    wanted = SIZES if sizes is None else numbers(sizes, "--sizes")
    if joining and ranks is not None:
        raise InvalidValueError(f"--ranks {ranks} was given, but torchrun has started the ranks (leave --ranks out)")
    measure: Callable[..., Cluster | None] = join_measurement if joining else partial(measure_network, ranks)
    with progress("interrupted; every process was ended, nothing was saved") as report:
        found = measure(
            backend=backend, sizes=wanted, seconds=seconds, schedules=schedules, name=output.stem, on_progress=report
        )
    if found is None:
        return  # only rank 0 prints and saves
    assert found.measured is not None
    table = found.measured.table()
    advice = f"Plan with it: deeppool plan PROFILE … --cluster {shlex.quote(str(output))}"
    show(found, as_json, lambda: f"{table}\n\n{advice}", output=output)
