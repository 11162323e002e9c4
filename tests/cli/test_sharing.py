"""``deeppool frontier --background``: the table, the one answer, and JSON."""

import json
import re

import pytest
from typer.testing import CliRunner

import deeppool as dp
from deeppool.cli.app import app
from deeppool.cli.sharing import partition_table
from deeppool.errors import InvalidValueError, PlanError
from tests.strategies import make_graph, profile_from_times


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A layer that scales and one that does not, 0.5 ms a sample and 8 ms."""
    times = [lambda batch: 0.5e-3 * batch, lambda batch: 8e-3]
    return dp.save(profile_from_times(make_graph([(), (0,)]), times), tmp_path_factory.mktemp("a") / "front.json")


@pytest.fixture(scope="module")
def background(tmp_path_factory):
    found = profile_from_times(make_graph([()]), [lambda batch: 0.5e-3 * batch])
    return dp.save(found, tmp_path_factory.mktemp("b") / "back.json")


def frontier(profile, *more):
    arguments = ["frontier", profile, "--gpus", 4, "--global-batch", 16, "--cluster", "dgx-a100", *more]
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_table_has_a_line_per_partition_with_what_collocation_gains(profile, background):
    done = frontier(profile, "--background", background)
    assert done.exit_code == 0
    rows = [" ".join(line.split()) for line in done.stdout.splitlines() if "GPUs " in line and " + " in line[:30]]
    assert [row[:10] for row in rows] == ["1 + 3 GPUs", "2 + 2 GPUs", "4 + 0 GPUs"]
    # Partitions of 1000 + 6000, 1333 + 4000 and 1600 + 0 samples/s.
    assert [row.split()[4:6] for row in rows] == [["1.00x", "7,000"], ["1.33x", "5,333"], ["1.60x", "1,600"]]
    assert "1.60x (+19.9 %; 4 GPUs, limit 1.0007)" in rows[1]
    assert max(map(len, done.stdout.splitlines()[2:])) <= 150
    assert "no interference modelled" in done.stdout


def test_a_limit_in_the_table_permits_its_plan(profile, tmp_path):
    # 7 samples divide into 2, 2, 2 and 1, or 4 and 3: amplifications of many digits.
    shared = dp.share(dp.load(profile), 4, 7, dp.load(profile))
    matched = [point for each in shared.comparisons() for point in (each.fastest, each.highest_throughput)]
    printed = [float(limit) for limit in re.findall(r"limit ([\d.]+)\)", partition_table(shared))]
    assert len(printed) == len(matched)
    for point, limit in zip(matched, printed, strict=True):
        assert 0 <= limit - point.amplification_limit * (1 - 1e-9) < 1.1e-4


def test_partitions_in_which_only_micro_steps_fit_are_in_the_table(tmp_path):
    """Of 1 MB a sample two GPUs hold 8 each; one accumulates, which no plan does. Three GPUs train 30,000 others."""
    graph = make_graph([()], activation_bytes=[10**6])
    file = dp.save(profile_from_times(graph, [lambda batch: 1e-3 * batch + 8e-3]), tmp_path / "front.json")
    job = dp.save(profile_from_times(make_graph([()]), [lambda batch: 1e-4 * batch]), tmp_path / "back.json")
    done = frontier(file, "--background", job, "--memory", "10MB")
    assert done.exit_code == 0, done.output
    row = next(line for line in done.stdout.splitlines() if "1 + 3 GPUs" in line)
    assert " ".join(row.split()) == (
        "1 + 3 GPUs 0.75x 30,500 does not fit no plan 21,000 (-31.1 %; 2 GPUs, limit 1.3334)"
    )


def test_the_table_of_many_gpus_is_not_cut_off(profile, background):
    shared = dp.share(dp.load(profile), 1024, 1024, dp.load(background))
    assert "…" not in partition_table(shared)


def test_json_is_the_record_and_equals_the_file(profile, background, tmp_path):
    path = tmp_path / "shared.json"
    done = frontier(profile, "--background", background, "--harvest-of-idle", 0.5, "-o", path, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    found, saved = json.loads(done.stdout), json.loads(path.read_text())
    assert found.pop("search_time") == saved.pop("search_time")
    assert found == saved
    assert (found["format"], found["harvest_of_idle"]) == ("deeppool/shared-cluster", 0.5)
    assert {"points", "data_parallel_partitions", "burst_parallel_partitions", "optimality"} <= set(found)
    assert dp.load(path).points


def test_the_answer_is_a_plan_that_the_plan_command_finds(profile, background):
    done = frontier(profile, "--background", background, "--min-background", 3000)
    assert done.exit_code == 0
    point, how = done.stdout.splitlines()
    arguments = how.removeprefix("as a plan: deeppool plan … ").split()
    found = CliRunner().invoke(
        app, ["plan", str(profile), *arguments, "--global-batch", "16", "--cluster", "dgx-a100", "--json"]
    )
    seconds = json.loads(found.stdout)["iteration_time"]
    assert f"({1e3 * seconds:.3g} ms an iteration)" in point


def test_each_condition_has_its_answer_in_json(profile, background):
    fast = json.loads(frontier(profile, "--background", background, "--min-background", 3000, "--json").stdout)
    assert fast["format"] == "deeppool/sharing-answer"
    assert fast["point"]["background_throughput"] >= 3000
    full = json.loads(frontier(profile, "--background", background, "--min-speedup", 1.2, "--json").stdout)
    assert full["point"]["speedup"] >= 1.2
    assert full["point"]["throughput"] >= fast["point"]["throughput"]


def test_a_background_batch_and_a_harvest_are_taken(profile, background):
    one = json.loads(frontier(profile, "--background", background, "--background-batch", 4, "--json").stdout)
    assert (one["background_batch"], one["harvest_of_idle"]) == (4, 1.0)


@pytest.mark.parametrize(
    ("more", "phrase"),
    [
        (["--min-speedup", "2"], "--min-speedup needs --background PROFILE"),
        (["--harvest-of-idle", "0.5"], "--harvest-of-idle needs --background PROFILE"),
        (["--background", "x.json", "--min-speedup", "2", "--min-background", "5"], "not both"),
    ],
)
def test_options_that_mean_nothing_here_are_bad_usage(more, phrase, profile):
    done = frontier(profile, *more)
    assert (done.exit_code, done.stdout) == (2, "")
    assert phrase in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("more", "error", "phrase"),
    [
        (["--min-speedup", 9], PlanError, "no plan makes drawn 9x as fast as one GPU"),
        (["--min-background", 9000], PlanError, "no plan leaves 9000 samples/s to drawn"),
        (["--background-batch", 64], InvalidValueError, "background_batch must be from 1 to 16"),
        (["--harvest-of-idle", 2], InvalidValueError, "harvest_of_idle must be from 0 to 1, got 2"),
    ],
)
def test_a_condition_out_of_reach_is_one_of_our_errors(more, error, phrase, profile, background):
    done = frontier(profile, "--background", background, *more)
    assert done.stdout == ""
    assert isinstance(done.exception, error)
    assert phrase in str(done.exception)
