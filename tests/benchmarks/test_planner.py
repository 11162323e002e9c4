"""The planner's benchmark compares plans with assignments at the same prices."""

import re

from benchmarks.planner.main import check


def test_no_plan_is_slower_or_faster_than_the_best_assignment():
    found = re.search(r"exact search: gap (\S+), 0 plans over the limit", check(40))
    assert float(found[1]) < 1e-9
