"""``deeppool simulate``: stragglers, a live run to compare with, and workloads of many jobs."""

import json
import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

import deeppool as dp
from deeppool.cli.app import app
from deeppool.cli.conditions import conditions
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.simulation.cluster.workload import TraceJob, WorkloadTrace
from deeppool.simulation.device.interference import Arrangement, Interference
from tests.figures.records import run_of, two_layer_plan
from tests.strategies import make_graph, profile_from_times

PLAN = two_layer_plan()
TIMES = profile_from_times(make_graph([(), (0,)]), [lambda b: 1e-3 * b, lambda b: 8e-3])
PROFILE = replace(TIMES, device_name=PLAN.device_name)
NOISY = replace(PROFILE, checks=(IterationCheck(4, 0.012, 0.012, 0.05, 9),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A plan, a run of it, a profile beside a trace that names it, and measured interference."""
    here = tmp_path_factory.mktemp("simulate")
    dp.save(PLAN, here / "plan.json")
    dp.save(run_of(), here / "run.json")
    dp.save(PROFILE, here / "net.json")
    dp.save(NOISY, here / "noisy.json")
    front = TraceJob(
        name="front", role="foreground", source="net.json", iterations=50, gpus=4, batch=16, amplification_limit=1.5
    )
    back = TraceJob(name="back", role="background", source="net.json", gpus=2)
    dp.save(WorkloadTrace("two", "by hand", (front, back)), here / "trace.json")
    pairs = tuple(Arrangement(name, ((0.8,),), ((0.4,),)) for name in ("normal", "nice", "lowest"))
    dp.save(Interference("a device", "2026-11-21", "made up", (1.0,), (1e-3,), pairs), here / "pairs.json")
    return here


def simulate(folder, what, *more):
    command = ["cluster", "simulate"] if what in ("trace.json", "workload.json") else ["simulate"]
    return CliRunner().invoke(app, [*command, str(folder / what), *map(str, more)])


def test_stragglers_of_a_plan_are_reported_and_the_same_for_a_seed(folder):
    options = ("--straggling", 0.2, "--delay", 2, "--jitter", 0.1, "--speed", "1=0.5", "--iterations", 50, "--seed", 3)
    done = simulate(folder, "plan.json", *options)
    assert done.exit_code == 0
    assert "speed of GPU 1 at 0.5, jitter 0.1, stragglers 0.2 of the time, 3 times as slow; seed 3: mean" in done.stdout
    assert "of 50 iterations" in done.stdout
    first, again = (json.loads(simulate(folder, "plan.json", *options, "--json").stdout) for _ in range(2))
    assert first == again
    conditions = dp.Conditions(speeds=(1.0, 0.5), straggling=0.2, delay=2.0, jitter=0.1, seed=3)
    assert first["iteration_times"] == list(dp.simulate(PLAN, conditions=conditions, iterations=50).iteration_times)


def test_without_anything_slow_a_plan_goes_as_planned(folder):
    told = json.loads(simulate(folder, "plan.json", "--speed", "1=1", "--json").stdout)
    assert told["conditions"] is None
    assert told["iteration_time"] == pytest.approx(PLAN.iteration_time)


def test_a_plan_is_compared_with_a_run_of_it(folder, tmp_path):
    done = simulate(folder, "plan.json", "--against", folder / "run.json", "-o", tmp_path / "found.json")
    assert done.exit_code == 0
    assert "simulated against the run of 2026-11-21T05:00:00 on 4 ranks on 2 cores of Test CPU (gloo)" in done.stdout
    found = dp.load(tmp_path / "found.json")
    assert found.fidelity == dp.compare_with_run(PLAN, run_of())
    assert len(found.fidelity.quantities) == 4


def test_a_run_is_compared_under_the_noise_of_a_profile(folder):
    more = ("--noise", folder / "noisy.json", "--iterations", 30, "--seed", 3)
    done = simulate(folder, "plan.json", "--against", folder / "run.json", *more)
    assert done.exit_code == 0
    noise = dp.profiled_conditions(NOISY, PLAN.gpus, seed=3)
    assert noise.jitter > 0.05
    assert str(dp.compare_with_run(PLAN, run_of(), conditions=noise, iterations=30)) in done.stdout
    assert str(noise) in done.stdout
    priced = ("--interference", folder / "pairs.json", "--background", folder / "net.json")
    beside = simulate(folder, "plan.json", "--against", folder / "run.json", *more, *priced)
    pairs = dp.load(folder / "pairs.json")
    told = dp.compare_with_run(PLAN, run_of(), background=PROFILE, interference=pairs, conditions=noise, iterations=30)
    assert str(told) in beside.stdout
    slow = simulate(folder, "plan.json", "--against", folder / "run.json", "--speed", "0=0.5", "--json")
    assert json.loads(slow.stdout)["fidelity"]["conditions"]["speeds"] == [0.5]


def test_the_sources_of_a_workload_lie_beside_its_file(folder):
    done = simulate(folder, "trace.json", "--gpus", 4, "--json")
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert (told["format"], told["strategy"]) == ("deeppool/cluster-simulation", "collocated")
    found = dp.simulate_cluster(dp.load(folder / "trace.json"), 4, sources={"net.json": PROFILE})
    assert told["makespan"] == found.makespan
    assert told["gpu_seconds"]["background"] == found.gpu_seconds.background
    line = simulate(folder, "trace.json", "--gpus", 4).stdout
    assert line.splitlines()[-1] == str(found)


def test_a_workload_by_one_strategy_and_by_all(folder):
    one = simulate(folder, "trace.json", "--gpus", 4, "--strategy", "partition", "--foreground-gpus", 2, "--json")
    assert json.loads(one.stdout)["foreground_gpus"] == 2
    every = simulate(folder, "trace.json", "--gpus", 4, "--strategy", "all", "--json")
    told = json.loads(every.stdout)
    assert told["format"] == "deeppool/cluster-comparison"
    assert [x["foreground_gpus"] for x in told["results"]] == [None, 1, 2, 4, None, None]


def test_a_workload_takes_interference_and_conditions(folder):
    options = ("--interference", folder / "pairs.json", "--policy", "naive", "--speed", "0=0.5")
    told = json.loads(simulate(folder, "trace.json", "--gpus", 4, *options, "--json").stdout)
    assert told["interference"] == "interference as on a device, 2026-11-21"
    assert told["conditions"]["speeds"] == [0.5]


def test_a_published_trace_becomes_a_workload_beside_its_profiles(folder, tmp_path):
    columns = "job_id,gpu_num,submit_time,duration"
    (tmp_path / "log.csv").write_text(f"{columns}\n1,2,2020-06-09 18:00:00,5\n2,1,2020-06-09 18:00:01,5\n")
    profile, workload = folder / "net.json", tmp_path / "workload.json"
    options = ("--profile", profile, "--gpus", 4, "--batch", 8, "-o", workload)
    done = CliRunner().invoke(app, ["cluster", "import", "helios", str(tmp_path / "log.csv"), *map(str, options)])
    assert done.exit_code == 0, done.exception
    told = json.loads(simulate(tmp_path, "workload.json", "--gpus", 4, "--json").stdout)
    assert [job["gpu_count"] for job in told["jobs"]] == [2, 1]


@pytest.mark.parametrize(
    ("what", "options", "told"),
    [
        ("plan.json", ["--max-slowdown", "0.1"], "give --interference too"),
        ("plan.json", ["--interference", "pairs.json", "--background", "net.json", "--jitter", "1"], "runs as planned"),
        (
            "plan.json",
            ["--interference", "pairs.json", "--background", "net.json", "--noise", "noisy.json"],
            "as planned",
        ),
        *(
            (
                "plan.json",
                ["--against", "run.json", "--interference", "pairs.json", "--background", "net.json", *more],
                f"{more[0]} does not go with --against and deviations from the plan: the run has its own",
            )
            for more in (
                ["--policy", "naive", "--noise", "noisy.json"],
                ["--max-slowdown", "0.1", "--jitter", "0.1"],
            )
        ),
        ("plan.json", ["--noise", "noisy.json", "--jitter", "0.1"], "leave out --jitter and --speed"),
        ("plan.json", ["--jitter", "0.1", "--iterations", "0"], "greater than or equal to 1"),
        ("trace.json", [], "Missing option '--gpus'"),
        ("trace.json", ["--gpus", "4", "--strategy", "partition"], "goes with --strategy partition"),
        ("trace.json", ["--gpus", "4", "--foreground-gpus", "2"], "goes with --strategy partition"),
        ("trace.json", ["--gpus", "4", "--policy", "paced"], "give --interference too"),
        ("trace.json", ["--gpus", "4", "--max-slowdown", "0.1"], "give --interference too"),
    ],
)
def test_options_that_do_not_go_together_are_bad_usage(folder, what, options, told):
    options = [str(folder / x) if x.endswith(".json") and x != "x.json" else x for x in options]
    done = simulate(folder, what, *options)
    assert done.exit_code == 2
    # The message is drawn in a box, line by line.
    assert told in " ".join(done.stderr.replace("│", " ").split())


def test_a_background_of_another_device_than_the_plan_is_refused(folder, tmp_path):
    other = dp.save(TIMES, tmp_path / "other.json")
    told = (
        r"the foreground's plan is of Test CPU \(cpu, 1 thread\), the background's profile of drawn \(cpu, 1 thread\)"
    )
    for more in ((), ("--interference", folder / "pairs.json")):
        done = simulate(folder, "plan.json", "--background", other, *more)
        assert isinstance(done.exception, InvalidValueError)
        assert re.search(told, str(done.exception))
    run = replace(run_of(), sharing=dp.Sharing())
    with pytest.raises(InvalidValueError, match=told):
        dp.compare_with_run(PLAN, run, background=TIMES, interference=dp.load(folder / "pairs.json"))


def test_what_cannot_be_is_reported(folder, tmp_path):
    assert isinstance(simulate(folder, "plan.json", "--speed", "first=2").exception, InvalidValueError)
    assert "a speed is, for example, 3=0.5" in str(simulate(folder, "plan.json", "--speed", "1").exception)
    twice = simulate(folder, "plan.json", "--speed", "0=0.5", "--speed", "0=2").exception
    assert "GPU 0 has two speeds, 0.5 and 2 (give one)" in str(twice)
    assert "GPUs count from 0, got the speed '-1=0.5'" in str(simulate(folder, "plan.json", "--speed=-1=0.5").exception)
    # As many speeds would fill the memory.
    with pytest.raises(InvalidValueError, match=r"at most 1048576 GPUs, from 0 on, got the speed '9999999999=0.5'"):
        conditions(["9999999999=0.5"])
    for strategy in ("all", "collocated"):
        refused = simulate(folder, "trace.json", "--gpus", 4, "--speed", "4=0.5", "--strategy", strategy).exception
        assert "up to GPU 4, the cluster has 4 GPUs, the last of which is 3" in str(refused)
    for what, more in (("plan.json", ()), ("trace.json", ("--gpus", 4))):
        refused = simulate(folder, what, "--jitter", 0.1, "--seed", -1, *more).exception
        assert isinstance(refused, InvalidValueError)
        assert str(refused) == "seed must be at least 0, got -1"
    missing = dp.load(folder / "trace.json")
    dp.save(replace(missing, jobs=(replace(missing.jobs[0], source="gone.json"),)), tmp_path / "trace.json")
    assert isinstance(simulate(tmp_path, "trace.json", "--gpus", 4).exception, DocumentError)
    other = replace(PLAN, model="other")
    dp.save(other, tmp_path / "plan.json")
    refused = simulate(tmp_path, "plan.json", "--against", folder / "run.json")
    assert "the run is of another plan" in str(refused.exception)
