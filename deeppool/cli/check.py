"""The ``deeppool check`` command."""

from pathlib import Path
from typing import Annotated

import typer

from deeppool.cli.options import AsJson, ProfileArgument
from deeppool.cli.output import show


def check(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="File written by `deeppool plan -o FILE`.")],
    profile_file: ProfileArgument,
    as_json: AsJson = False,
) -> None:
    """Check PLAN without the search that made it: its times, limit and memory, and how far from the optimum it can be.

    Times and memory are computed again from PROFILE. The factor comes from a lower bound that shares no code with the
    search. For models without branches in the paper's network model it decides whether the plan is the fastest one;
    else it may be larger than the factor that the plan claims. Exit code 1 if anything in the plan does not hold.

    Example: `deeppool check plan.json profile.json`
    """
    from deeppool.cli.inputs import read_plan
    from deeppool.planning.check import check as check_plan
    from deeppool.profiling.shipped import find_profile

    show(check_plan(read_plan(plan_file), find_profile(profile_file)), as_json)
