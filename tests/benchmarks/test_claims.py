"""What the README says of plans of shipped profiles is what the search finds; its seconds are those of a machine."""

import itertools

import pytest

import deeppool as dp
from benchmarks.planner.claims import LIMITS, cells
from benchmarks.planner.models import priced
from docs.results import readmes, results


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg16-h200", "vgg16-cpu"])
def test_gains_and_claims_are_as_the_readme_says(name: str) -> None:
    """Of the models that take the least time."""
    (told,) = (x.text for x in results("planner", readmes()["planner"]) if f"planner.claims {name}" in x.command)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines() if line.startswith("| ")]
    profile, known = dp.find_profile(name), {row[0]: row for row in rows}
    for gpus, samples in itertools.product((8, 64, 1024), (1, 4, 32)):
        row, costs = known[f"vgg16, {gpus}, {samples}"], priced(profile, gpus, samples)
        for limit, said in zip(LIMITS, (row[1:3], row[5:7]), strict=True):
            assert cells(profile, costs, limit).split(" | ")[:2] == said
