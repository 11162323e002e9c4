"""What records of runs say in lines."""

from deeppool.records.run_record import GovernorResult


def test_a_governor_tells_its_estimate_with_two_standard_errors() -> None:
    found = GovernorResult(slowdown=0.021, error=0.006, alone=40, collocated=100, share=0.5, banned=("conv1",))
    assert str(found) == "slowdown +2.1 % ± 1.2 (40 iterations alone), share 50 %, nothing beside conv1"
    assert str(GovernorResult(None, None, 0, 0, 1.0, ())) == "slowdown unknown, share 100 %"
