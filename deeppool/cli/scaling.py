"""The ``deeppool scaling`` command."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import AsJson, ProfileArgument, numbers
from deeppool.cli.output import progress, show


def scaling(
    profile_file: ProfileArgument,
    gpus: Annotated[
        int, typer.Option(help="Largest GPU count; the study covers it and the powers of two below it.")
    ] = 1024,
    global_batch: Annotated[int, typer.Option(help="Samples per iteration in strong scaling.")] = 256,
    per_gpu_batch: Annotated[
        int | None, typer.Option(help="Samples per GPU in weak scaling.", show_default="--global-batch")
    ] = None,
    network: Annotated[
        str, typer.Option(help="Link bandwidths of a GPU, in Gbit/s per direction.")
    ] = "10,200,1000,4800",
    steps_to_accuracy: Annotated[
        str,
        typer.Option(
            help="Steps to the target accuracy for each global batch: your own file, vgg11-shallue2019 (Shallue et "
            "al., read from their figure), imagenet-90-epochs (Goyal et al., ResNet-50), or example (round numbers, "
            "not from a paper)."
        ),
    ] = "example",
    amplification_limit: Annotated[
        float | None,
        typer.Option(help="Maximum GPU-seconds of a layer as a multiple of its time on one GPU (at least 1)."),
    ] = None,
    network_model: Annotated[
        Literal["ring", "halving-doubling", "hierarchical", "best", "paper"],
        typer.Option(help="Cost model of all-reduces; paper is DeepPool's, in which nothing overlaps."),
    ] = "best",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the study (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Predict the time to accuracy on more GPUs and faster networks: weak, strong and batch-optimal scaling.

    Weak scaling fixes the per-GPU batch, strong scaling the global batch; batch-optimal scaling uses the global batch
    with the shortest time to accuracy at each GPU count. All three are predicted data parallel, every layer on all
    GPUs, and burst parallel. All-reduces overlap the backward pass as in a run, but not with --network-model paper.

    Format of a steps file: `{"format": "deeppool/steps-table", "version": 1, "name": "my model to 70 %", "source":
    "trained in May", "pairs": [[256, 90000], [1024, 30000], [8192, 12000]]}`

    Example: `deeppool scaling vgg16.json --gpus 256 --network 10,1000 --steps-to-accuracy steps.json -o study.json`
    """
    from deeppool.base.number_checks import positive_number
    from deeppool.planning.request import gpu_counts_to_search
    from deeppool.planning.studies.scaling import scaling as study
    from deeppool.planning.studies.steps_to_accuracy import find_steps

    speeds = [positive_number("--network", each, "Gbit/s") for each in numbers(network, "--network")]
    times = read_profile(profile_file)
    steps = find_steps(steps_to_accuracy)
    with progress() as report:
        found = study(
            times,
            steps,
            gpu_counts=gpu_counts_to_search(gpus, gpus),
            bandwidths=[gigabits * 1e9 / 8 for gigabits in speeds],
            global_batch=global_batch,
            per_gpu_batch=per_gpu_batch,
            amplification_limit=amplification_limit,
            network_model=network_model,
            on_progress=report,
        )
    show(found, as_json, found.table, output=output)
