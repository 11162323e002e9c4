"""``deeppool``: the command line.

Every command takes ``--json`` and then prints one JSON object and nothing else on standard output; text
for people about work under way goes to standard error. Exit codes: 0, 1 for an error told in one line,
2 for bad usage.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from deeppool.errors import DeeppoolError, InvalidValueError, RunError

if TYPE_CHECKING:
    from deeppool.documents import Record
    from deeppool.planning.plan import Plan

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="See where GPU time is lost when training is strong-scaled, plan a better use of the GPUs, and run that plan "
    "with a background job in the gaps.\n\n"
    "From a model to a live run:\n\n"
    "  [bold]deeppool profile vgg16 --input-shape 3,64,64 --batch-sizes 1,2,4,8,16 -o vgg16.json[/bold]\n\n"
    "  [bold]deeppool plan vgg16.json --gpus 2 --global-batch 16 --amplification-limit 1.5 -o plan.json[/bold]\n\n"
    "  [bold]deeppool run plan.json --background resnet18 --seconds 30[/bold]",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output, nothing else.")]
Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["fp32", "bf16", "fp16"]
Policy = Literal["none", "naive", "nice", "priority"]
ModelArgument = Annotated[
    str, typer.Argument(help="A named model (vgg16, resnet50, …) or your own: package.module:callable.")
]
ShapeOption = Annotated[
    str | None, typer.Option(help="Shape of one sample, for example 3,224,224; named models have their own.")
]


def main() -> None:
    """Runs a command; an error of ours becomes one line and exit code 1."""
    try:
        app()
    except DeeppoolError as error:
        print("error:", " ".join(str(error).split("\n")), file=sys.stderr)
        sys.exit(1)


ClusterOption = Annotated[
    str | None,
    typer.Option(
        help="dgx-a100, dgx-h100, dgx-h200, ethernet-25g, loopback, or a cluster file. "
        "Default: loopback for a profile of a CPU, else dgx-a100."
    ),
]
NetworkOption = Annotated[
    Literal["ring", "halving-doubling", "hierarchical", "best", "paper"],
    typer.Option(help="Pattern that prices all-reduces; paper is DeepPool's simpler model."),
]
CountsOption = Annotated[
    Literal["powers", "all"], typer.Option(help="GPU counts that a layer may have: powers of two, or any.")
]
ProfileArgument = Annotated[Path, typer.Argument(metavar="PROFILE", help="Made by: deeppool profile.")]


# -- commands ---------------------------------------------------------------------------------------


@app.command()
def env(as_json: AsJson = False) -> None:
    """What this machine has: processors, GPUs, packages, the priority that a background job gets."""
    from deeppool.env import environment

    _show(environment(), as_json)


@app.command()
def profile(
    model: ModelArgument,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to save the profile (JSON).")],
    device: Annotated[Device, typer.Option(help="auto is CUDA where there is a GPU.")] = "auto",
    input_shape: ShapeOption = None,
    batch_sizes: Annotated[str, typer.Option(help="Per-GPU batch sizes to measure; a plan interpolates.")] = "1,2,4,8",
    precision: Annotated[Precision, typer.Option(help="bf16 and fp16 run under autocast.")] = "fp32",
    as_json: AsJson = False,
) -> None:
    """Measure every distinct layer of MODEL, forward and backward.

    An interrupted profile keeps what it measured in FILE.partial; the same command goes on from there.

    Example: deeppool profile resnet50 --batch-sizes 1,4,16,64 -o resnet50.json
    """
    from deeppool.profiling.measure import profile as measure

    shape, sizes = _shape(input_shape), _numbers(batch_sizes, "--batch-sizes")
    with _progress() as report:
        try:
            found = measure(
                model,
                shape,
                device=device,
                batch_sizes=sizes,
                precision=precision,
                output=output,
                on_progress=lambda done, count, what: report(what, done / count),
            )
        except KeyboardInterrupt:
            raise RunError(
                f"interrupted; what was measured is in {output}.partial (the same command goes on)"
            ) from None
    _show(found, as_json)


@app.command()
def plan(
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    amplification_limit: Annotated[
        float | None,
        typer.Option(help="The most GPU-seconds a layer may spend, as a multiple of its time on one GPU (at least 1)."),
    ] = None,
    limit_scope: Annotated[
        Literal["layer", "iteration"],
        typer.Option(help="Whether every layer keeps the limit, as in the paper, or all of them together."),
    ] = "layer",
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = "ring",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the plan (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest plan whose layers keep the amplification limit, and say why each layer got its GPUs.

    Example: deeppool plan vgg16.json --gpus 8 --global-batch 32 --amplification-limit 2 --cluster dgx-a100
    """
    from deeppool import documents
    from deeppool.cluster import find_cluster
    from deeppool.planning.planner import plan as make_plan
    from deeppool.profiling.table import Profile

    times = documents.read(profile_file, Profile)
    place = find_cluster(cluster or _default_cluster(times.device), gpus)
    found = make_plan(
        times,
        place,
        global_batch,
        amplification_limit,
        limit_scope=limit_scope,
        gpu_counts=gpu_counts,
        network_model=network_model,
    )
    if output is not None:
        documents.write(found, output)
    _show(found, as_json, found.explain)


@app.command()
def frontier(
    profile_file: ProfileArgument,
    gpus: Annotated[int, typer.Option(help="GPUs to plan for.")],
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, over all GPUs.")],
    gpu_counts: CountsOption = "powers",
    cluster: ClusterOption = None,
    network_model: NetworkOption = "ring",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the frontier (JSON).")] = None,
    as_json: AsJson = False,
) -> None:
    """Find every efficient plan at once: iteration time against GPU-seconds.

    A point of amplification 1 or more is a plan: deeppool plan … --limit-scope iteration --amplification-limit A

    Example: deeppool frontier vgg16.json --gpus 8 --global-batch 32 --cluster dgx-a100
    """
    from deeppool import documents
    from deeppool.cluster import find_cluster
    from deeppool.planning.planner import frontier as find_frontier
    from deeppool.profiling.table import Profile

    times = documents.read(profile_file, Profile)
    place = find_cluster(cluster or _default_cluster(times.device), gpus)
    found = find_frontier(times, place, global_batch, gpu_counts=gpu_counts, network_model=network_model)
    if output is not None:
        documents.write(found, output)
    _show(found, as_json)


@app.command()
def simulate(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Made by: deeppool plan -o FILE.")],
    background: Annotated[
        Path | None,
        typer.Option(help="Profile of a background job that fills the idle time (no interference modelled)."),
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="Where to save a Chrome/Perfetto trace.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay one iteration of PLAN on a virtual clock: who is busy when, and what a background job could take.

    Example: deeppool simulate plan.json --trace trace.json   (open it in ui.perfetto.dev)
    """
    from deeppool import documents
    from deeppool.figures.trace import write_trace
    from deeppool.planning.plan import Plan
    from deeppool.profiling.table import Profile
    from deeppool.simulation.replay import simulate as replay

    sample_time = None
    if background is not None:
        job = documents.read(background, Profile)
        sample_time = job.iteration_time(job.batch_sizes[-1]) / job.batch_sizes[-1]
    found = replay(documents.read(plan_file, Plan), background_sample_time=sample_time)
    if trace is not None:
        write_trace(trace, found.timeline)
    _show(found, as_json)


@app.command()
def run(
    what: Annotated[
        str, typer.Argument(metavar="PLAN|MODEL", help="A plan file, or a model to profile and plan first.")
    ],
    ranks: Annotated[int | None, typer.Option(help="Processes to start; a plan has its own number.")] = None,
    background: Annotated[str | None, typer.Option(help="Model to train beside every rank.")] = None,
    steps: Annotated[int | None, typer.Option(help="Iterations to measure per condition.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Seconds to measure, instead of steps (30 unless given).")
    ] = None,
    policy: Annotated[
        Policy | None,
        typer.Option(
            help="How the background shares a core: as an equal (naive), at nice 19, or at the lowest priority."
        ),
    ] = None,
    input_shape: ShapeOption = None,
    global_batch: Annotated[int, typer.Option(help="Samples per iteration, when a MODEL is given.")] = 16,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Where to save the record (JSON).")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Where to save a Chrome/Perfetto trace, planned and measured.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a plan on this machine, alone and beside a background job, and say what each cost the other.

    Ctrl-C ends every process.

    Example: deeppool run plan.json --background resnet18 --seconds 60 -o run.json --trace trace.json
    """
    from deeppool import documents
    from deeppool.figures.trace import write_trace
    from deeppool.session import launch

    for path in (output, trace):
        if path is not None:
            documents.check_writable(path)
    with _progress() as report:
        try:
            chosen = _plan_for(what, ranks, _shape(input_shape), global_batch, report)
            record = launch(
                chosen, background=background, policy=policy, steps=steps, seconds=seconds, on_progress=report
            )
        except KeyboardInterrupt:
            raise RunError("interrupted; every process of the run was ended, nothing was saved") from None
    if output is not None:
        documents.write(record, output)
    if trace is not None:
        write_trace(trace, record.plan_timeline, record.timeline)
    _show(record, as_json)


@app.command()
def evaluate(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder for notebooks, HTML and records.")],
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Notebooks; all unless given.")] = None,
    full: Annotated[bool, typer.Option("--full/--quick", help="The notebook's full or quick preset.")] = False,
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", metavar="NAME=VALUE", help="Overrides one parameter.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run notebooks by papermill; leaves each executed, with an HTML report that needs no network.

    Example: deeppool evaluate burst-parallel -p global_batch=32 -o reports
    """
    from deeppool.evaluation.notebooks import evaluate as run_notebooks

    with _progress() as report:
        try:
            results = run_notebooks(
                names or [],
                output,
                preset="full" if full else "quick",
                parameters=_assignments(parameter),
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise RunError(f"interrupted; finished notebooks are in {output}") from None
    if as_json:
        print(json.dumps({"notebooks": [result.to_json() for result in results]}))
    else:
        print("\n\n".join(map(str, results)))


@app.command()
def lab(
    folder: Annotated[Path, typer.Argument(help="Where your copies of the notebooks are, or shall be.")] = Path(
        "deeppool-notebooks"
    ),
) -> None:
    """Open JupyterLab on your own copy of the notebooks: on this machine only, behind its token."""
    from deeppool.evaluation.notebooks import copy_notebooks, start_lab

    sys.exit(start_lab(copy_notebooks(folder)))


# -- what they share --------------------------------------------------------------------------------


def _show(record: "Record", as_json: bool, text: Callable[[], str] | None = None) -> None:
    from deeppool.documents import to_json

    print(json.dumps(to_json(record)) if as_json else text() if text else str(record))


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error, when that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=console,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=1.0)
    with bar:
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _numbers(text: str, option: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise typer.BadParameter(f"{option} takes whole numbers with commas, got '{text}'") from None


def _shape(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else _numbers(text, "--input-shape")


def _assignments(pairs: list[str] | None) -> dict[str, Any]:
    """``NAME=VALUE`` pairs; values are JSON where they can be, else text."""
    found: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise typer.BadParameter(f"-p takes NAME=VALUE, got '{pair}'")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            found[name] = value
    return found


def _default_cluster(device: str) -> str:
    return "loopback" if device == "cpu" else "dgx-a100"


def _plan_for(
    what: str, ranks: int | None, shape: tuple[int, ...] | None, global_batch: int, report: Callable[[str, float], None]
) -> "Plan":
    """A plan from its file, or one made here for a model."""
    from deeppool import documents
    from deeppool.cluster import find_cluster
    from deeppool.device.cpu import usable_cores
    from deeppool.planning.plan import Plan
    from deeppool.planning.planner import plan as make_plan
    from deeppool.profiling.measure import profile as measure

    if Path(what).is_file():
        found = documents.read(what, Plan)
        if ranks is not None and ranks != found.gpus:
            raise RunError(
                f"{what} is a plan for {found.gpus} ranks, --ranks is {ranks} (plan again with --gpus {ranks})"
            )
        return found
    for option, number in (("--ranks", ranks), ("--global-batch", global_batch)):
        if number is not None and number < 1:
            raise InvalidValueError(f"{option} must be at least 1, got {number}")
    count = ranks or min(len(usable_cores()), global_batch)
    if count > global_batch:
        raise InvalidValueError(f"--ranks {count} cannot share --global-batch {global_batch}: each needs a sample")
    sizes = sorted({max(1, global_batch // count), global_batch})
    times = measure(
        what, shape, batch_sizes=sizes, on_progress=lambda done, of, layer: report(f"profiling {layer}", done / of)
    )
    return make_plan(times, find_cluster(_default_cluster(times.device), count), global_batch)


if __name__ == "__main__":
    main()
