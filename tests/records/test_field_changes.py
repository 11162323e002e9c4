"""Two records of a kind, compared field by field."""

from dataclasses import replace

import pytest

from deeppool.cluster.cluster import find_cluster
from deeppool.errors import InvalidValueError
from deeppool.records.field_changes import FieldChange, FieldChanges, compare_fields
from tests.figures.records import run_of


def test_only_the_fields_that_differ_are_changes_and_the_others_are_counted() -> None:
    before = find_cluster("dgx-a100", 8)
    found = compare_fields(before, replace(before, gpus=4))
    assert found.changes == (FieldChange("gpus", 8, 4),)
    # Every other number, text and flag in the file: that of a record by itself, but for this one.
    assert found.equal == compare_fields(before, before).equal - 1 > 5
    assert compare_fields(before, before).changes == ()


def test_a_field_of_one_record_only_is_absent_in_the_other() -> None:
    with_background, without = run_of(), run_of(background=False)
    found = {change.path: change for change in compare_fields(with_background, without).changes}
    change = found["background.model"]
    assert change.before == "mobilenet_v2"
    assert change.after != "mobilenet_v2"


def test_records_of_two_kinds_are_not_compared() -> None:
    with pytest.raises(InvalidValueError, match=r"a cluster and a run cannot be compared"):
        compare_fields(find_cluster("loopback", 2), run_of())


def test_the_relatively_largest_changes_come_first_and_numbers_say_by_how_much() -> None:
    changes = (
        FieldChange("a", 2.0, 3.0),
        FieldChange("b", 1.0, 0.1),
        FieldChange("c", 0, 5),
        FieldChange("d", "x", "y"),
        FieldChange("e", True, False),
    )
    text = FieldChanges("run", 7, changes).explain().splitlines()
    assert text[0] == "run: 5 of 12 values differ"
    # Without an earlier number there is no ratio: those come first, in the order of the fields.
    assert [line.split(":")[0].strip() for line in text[1:]] == ["c", "d", "e", "b", "a"]
    assert text[4].endswith("(-90 %)")
    assert text[5].endswith("(+50 %)")
    assert "%" not in text[1] + text[2] + text[3]


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(-0.5, 0.5, "+200 %"), (-2, -3, "-50 %"), (-2, -1, "+50 %"), (2, 5000, "2,500 times")],
)
def test_what_grew_from_below_zero_has_a_plus_and_what_grew_much_a_factor(
    before: float, after: float, change: str
) -> None:
    assert str(FieldChange("slowdown", before, after)).endswith(f"({change})")


@pytest.mark.parametrize(("count", "last"), [(40, "  f39: 1 → 2"), (41, "… and 1 more (with --json, all of them)")])
def test_beyond_40_changes_the_text_says_how_many_more_there_are(count: int, last: str) -> None:
    changes = tuple(FieldChange(f"f{number}", 1, 2) for number in range(count))
    text = FieldChanges("run", 0, changes).explain().splitlines()
    assert text[-1].startswith(last)
    assert sum(line.startswith("  f") for line in text) == 40
