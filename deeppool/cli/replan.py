"""The ``deeppool replan`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import AsJson, ProfileArgument
from deeppool.cli.output import show


def replan(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="Plan of the run.")],
    profile_file: ProfileArgument,
    run_file: Annotated[Path, typer.Argument(metavar="RUN", help="File written by `deeppool run PLAN -o FILE`.")],
    hysteresis: Annotated[
        float | None,
        typer.Option(
            help="Minimum gain of a recommended plan, as a fraction of the iteration time (default: 0.05).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File for the next plan: the new one if it is recommended, else PLAN."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Correct the layer times of PROFILE by a RUN of PLAN, and plan again with them.

    Reports the predicted gain of the new plan, and recommends it if that is more than --hysteresis, as measured times
    are noisy and a change restarts all ranks, or if PLAN exceeds its limit at the corrected times.

    Example: `deeppool replan plan.json vgg16.json run.json -o plan2.json`
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.replanning.replan import HYSTERESIS, costs_for_replan, plan_again
    from deeppool.planning.replanning.replan import replan as replan_run
    from deeppool.records.run_record import RunRecord

    ran = serialization.read(plan_file, Plan)
    found = replan_run(
        ran,
        read_profile(profile_file),
        serialization.read(run_file, RunRecord),
        hysteresis=HYSTERESIS if hysteresis is None else hysteresis,
    )
    show(found, as_json, found.explain)
    if output is not None and found.recommended:
        # With the prices of other GPU counts, so that the file can be explained as any plan's.
        costs = costs_for_replan(ran, found.profile)
        serialization.write(plan_again(ran, found.profile, costs), output)
    elif output is not None:
        serialization.write(ran, output)
