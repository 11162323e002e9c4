"""``deeppool replan``."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.inputs import read_profile
from deeppool.cli.options import AsJson, ProfileArgument
from deeppool.cli.output import show


def replan(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="The plan that was run.")],
    profile_file: ProfileArgument,
    run_file: Annotated[Path, typer.Argument(metavar="RUN", help="Made by: deeppool run PLAN -o FILE.")],
    hysteresis: Annotated[
        float | None,
        typer.Option(
            help="The gain, as a share of the iteration time, that a new plan must exceed (default: 0.05).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Where to save the plan to run next: the new one, or PLAN if it stays."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Correct the layer times of PROFILE by a RUN of PLAN, and find the plan that is best at them.

    Says what the new plan would gain, and recommends it only if that is more than noise and a restart are worth.

    Example: deeppool replan plan.json vgg16.json run.json -o plan2.json
    """
    from deeppool.base import serialization
    from deeppool.planning.plan import Plan
    from deeppool.planning.planner import plan_from_costs
    from deeppool.planning.replanning.replan import HYSTERESIS, costs_for_replan
    from deeppool.planning.replanning.replan import replan as plan_again
    from deeppool.records.run_record import RunRecord

    if output is not None:
        serialization.check_writable(output)
    ran = serialization.read(plan_file, Plan)
    found = plan_again(
        ran,
        read_profile(profile_file),
        serialization.read(run_file, RunRecord),
        hysteresis=HYSTERESIS if hysteresis is None else hysteresis,
    )
    if output is not None and found.recommended:
        # With the prices of other GPU counts, so that the file can be explained as any plan's.
        costs = costs_for_replan(ran, found.profile)
        serialization.write(plan_from_costs(found.profile, costs, ran.amplification_limit, ran.limit_scope), output)
    elif output is not None:
        serialization.write(ran, output)
    show(found, as_json, found.explain)
