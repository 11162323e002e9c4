"""The ``deeppool advise`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, ClusterOption, Precision, ShapeOption, refuse_given, shape
from deeppool.cli.output import progress, show


def advise(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A torchvision classifier (resnet50, …), bert_base, a language model of transformers (gpt2, …), your "
            "own model as package.module:callable, or a profile: a file, or the name of a shipped one (vgg16-h200, …).",
        ),
    ],
    gpus: Annotated[int, typer.Option(help="GPUs of the cluster.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="GPU whose data sheet estimates the layer times (`deeppool estimate --gpu list`), or cpu, cuda, "
            "emulated or emulated:GPU: they are measured on it. A profile has its own.",
        ),
    ] = "a100-80",
    cluster: ClusterOption = None,
    precision: Annotated[
        Precision,
        typer.Option(
            help="tf32 is PyTorch's default for convolutions; bf16 and fp16 use autocast. A profile has its own."
        ),
    ] = "tf32",
    input_shape: ShapeOption = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="HTML page to write, with figures; it needs no network."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File for the advice (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Say which techniques are worth it for MODEL over data parallelism (DDP), and what to do next.

    Example: `deeppool advise inception_v3 --gpus 8 --global-batch 32 --device h100 --html advice.html`

    From your own measurement: `deeppool advise profile.json --gpus 8 --global-batch 32 --cluster cluster.json`
    """
    from deeppool.advice.advise import advise as find_advice
    from deeppool.advice.layer_times import names_profile
    from deeppool.cluster.cluster import find_cluster

    if names_profile(model):
        why = f"is for a model, and the profile {model} has its own (leave it out)"
        refuse_given(context, why, "device", "precision")
    with progress() as report:
        found = find_advice(
            model,
            find_cluster(cluster, gpus) if cluster else gpus,
            global_batch,
            device=device,
            precision=precision,
            input_shape=shape(input_shape),
            on_progress=report,
        )
    show(found, as_json, found.explain, output=output)
    if html is not None:
        from deeppool.base import serialization
        from deeppool.figures.record_page import record_page

        parts = (("Advice", found), ("The fastest plan", found.plan), ("All efficient plans", found.frontier))
        serialization.write_text(record_page(str(found), parts), html)
