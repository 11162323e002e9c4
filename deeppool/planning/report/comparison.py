"""Comparison of any two records of one kind."""

from typing import Any

from deeppool.planning.plan import Plan
from deeppool.planning.report.diff import PlanDiff, diff
from deeppool.profiling.comparison import ProfileComparison, compare_profiles
from deeppool.profiling.table import Profile
from deeppool.records.field_changes import FieldChanges, compare_fields
from deeppool.records.run_comparison import RunComparison, compare_runs
from deeppool.records.run_record import RunRecord

Comparison = PlanDiff | RunComparison | ProfileComparison | FieldChanges


def compare_records(before: Any, after: Any) -> Comparison:
    """Compares two records: plans, runs and profiles by their meaning, others field by field.

    Raises:
        InvalidValueError: the records are of different kinds.
        PlanError: plans of different models.
    """
    match before, after:
        case Plan(), Plan():
            return diff(before, after)
        case RunRecord(), RunRecord():
            return compare_runs(before, after)
        case Profile(), Profile():
            return compare_profiles(before, after)
    return compare_fields(before, after)
