"""``deeppool network``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from deeppool.cli.options import AsJson, numbers
from deeppool.cli.output import progress, show
from deeppool.errors import InvalidValueError, RunError

if TYPE_CHECKING:
    from deeppool.cluster.cluster import Cluster


def network(
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to save the cluster (JSON).")],
    ranks: Annotated[
        int | None,
        typer.Option(help="Processes to start here. Default: as many as there are GPUs or cores, at least 2."),
    ] = None,
    backend: Annotated[
        Literal["auto", "gloo", "nccl"],
        typer.Option(help="gloo between CPU ranks, NCCL between GPUs; auto is NCCL where there are GPUs."),
    ] = "auto",
    sizes: Annotated[
        str | None,
        typer.Option(help="Bytes to measure, for example 4,4096,67108864. Default: 4 B to 64 MiB, all powers of two."),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="To measure; every size is run 9 times at least, whatever that takes.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Measure transfers and all-reduces between ranks of this machine, and save them as a cluster for the planner.

    Starts real ranks, as deeppool run does: one-way transfers between two of them, all-reduces of 2, 3, 4 … of them.
    Plans made with the file price all-reduces by what was measured, and transfers by a line through it.

    Example: deeppool network --ranks 2 -o mine.json

    Plan with it: deeppool plan vgg16.json --gpus 2 --global-batch 16 --cluster mine.json

    On several nodes, the same command on each of them, under torchrun:

    torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST -m deeppool.cli network -o mine.json

    Rank 0 saves the file. Ctrl-C ends every process, and nothing is saved.
    """
    from deeppool.base import serialization
    from deeppool.processes.torchrun import started_by_torchrun
    from deeppool.profiling.network.measure import SIZES, join_measurement, measure_network

    serialization.check_writable(output)
    wanted = SIZES if sizes is None else numbers(sizes, "--sizes")
    joining = started_by_torchrun()
    if joining and ranks is not None:
        raise InvalidValueError(f"--ranks {ranks} was given, but torchrun has started the ranks (leave --ranks out)")
    found: Cluster | None
    with progress() as report:
        try:
            if joining:
                found = join_measurement(
                    backend=backend, sizes=wanted, seconds=seconds, name=output.stem, on_progress=report
                )
            else:
                found = measure_network(
                    ranks, backend=backend, sizes=wanted, seconds=seconds, name=output.stem, on_progress=report
                )
        except KeyboardInterrupt:
            raise RunError("interrupted; every process was ended, nothing was saved") from None
    if found is None:
        return  # rank 0 speaks for all
    serialization.write(found, output)
    assert found.measured is not None
    table = found.measured.table()
    show(found, as_json, lambda: f"{table}\n\nPlan with it: deeppool plan PROFILE … --cluster {output}")
