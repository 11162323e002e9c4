"""Network measurement by real ranks over gloo: its results, and the clean-up after a failure."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

import deeppool as dp
from deeppool.cluster.cluster import Cluster, find_cluster
from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.costs.communication import Network
from deeppool.costs.schedules import all_reduce_times, fastest_all_reduce
from deeppool.device.find import find_device
from deeppool.errors import DeviceUnavailableError, InvalidValueError, RankFailedError, RunError
from deeppool.profiling.network import measure, patterns
from deeppool.profiling.network.patterns import BOUND, MINIMUM_RUNS, Pattern, RankContext, group_sizes, is_precise
from tests.processes.children import gone, running
from tests.ranks import free_port
from tests.strategies import make_graph, measured_network, profile_from_times
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]
LONG = 600
"""Seconds that no test waits for: a measurement of this length is ended by its fault."""
SIZES = (4, 2**16, 2**22)


@pytest.fixture(autouse=True)
def not_under_torchrun(monkeypatch):
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)


# -- what is measured -------------------------------------------------------------------------------


def test_patterns_of_one_node_are_a_transfer_an_exchange_and_all_reduces():
    found = RankContext(0, 3, 3).patterns()
    assert found[:2] == [Pattern("transfer", (0, 1)), Pattern("exchange", (0, 1))]
    assert found[2:] == [Pattern("all-reduce", (0, 1)), Pattern("all-reduce", (0, 1, 2))]


def test_patterns_of_several_nodes_have_pairs_inside_and_between_nodes():
    for kind in ("transfer", "exchange"):
        assert [x.ranks for x in RankContext(5, 8, 4).patterns() if x.kind == kind] == [(0, 1), (0, 4)]
    assert [x.ranks for x in RankContext(0, 2, 1).patterns()] == [(0, 1)] * 3


def test_groups_are_few_and_hold_a_node_and_one_rank_more():
    assert group_sizes(5, 5) == (2, 3, 4, 5)
    assert group_sizes(40, 20) == (2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 21, 24, 32, 40)
    assert len(group_sizes(1024, 8)) < 25


def test_a_median_is_precise_once_its_interval_is_narrow():
    noisy = [1.0, 2.0] * MINIMUM_RUNS
    assert not is_precise([1.0] * (MINIMUM_RUNS - 1))
    assert is_precise([1.0] * MINIMUM_RUNS)
    assert not is_precise(noisy)
    # Quartiles of 1 and 2, median 1.5: the interval is 1.57 / √n of it.
    enough = math.ceil((1.57 / 1.5 / BOUND) ** 2)
    assert not is_precise([1.0, 2.0] * (enough // 2 - 2))
    assert is_precise([1.0, 2.0] * (enough // 2 + 2))


@pytest.mark.parametrize(("kind", "seconds"), [("transfer", 1.5), ("exchange", 3.0), ("all-reduce", 3.0)])
def test_a_transfer_counts_for_half_a_round_trip_and_the_warm_up_for_nothing(kind, seconds, monkeypatch):
    ticks, used = iter([0.0, 100.0, 200.0, 203.0, 300.0, 303.0]), iter([0.0, 9.0, 20.0, 21.5, 30.0, 33.1])
    clocks = SimpleNamespace(perf_counter=lambda: next(ticks), process_time=lambda: next(used))
    monkeypatch.setattr(patterns, "time", clocks)
    monkeypatch.setattr(patterns, "Performer", lambda group: None)
    monkeypatch.setattr(patterns._PatternRank, "_perform", lambda *_: None)
    member = patterns._PatternRank([Pattern(kind, (0, 1))], RankContext(0, 2, 2), None, find_device("cpu"), (4, 8))
    # Other threads may add to what is used.
    assert member._run(1, 2) == [(seconds, 0.5), (seconds, 1.0)]


def test_a_schedule_is_given_up_where_it_is_slow_and_beyond(monkeypatch):
    monkeypatch.setattr(patterns, "Performer", lambda group: None)
    alike = [Pattern(kind, (0, 1)) for kind in ("all-reduce", "ring")]
    sizes = (2**18, 2**20, 2**22, 2**24)
    member = patterns._PatternRank(alike, RankContext(0, 2, 2), None, find_device("cpu"), sizes)
    # Of each size the library's, then the ring's: it is slow at 256 KiB, where latency counts, and at 4 MiB.
    times = [[1.0], [4.0], [1.0], [2.9], [1.0], [3.1, 3.1, 9.0], [1.0], []]
    assert [member._is_given_up(times, index) for index in range(8)] == [False, True, *[False] * 3, True, False, True]
    assert member._is_given_up([[1.0], [4.0], *[[]] * 6], 3) is False


def test_large_sizes_of_a_slow_network_are_left_out_whose_runs_would_take_longer_than_all_may(monkeypatch):
    clock, bytes_per_second, latency = [0.0], 1e7, 1e-4
    sizes = tuple(2**exponent for exponent in range(2, 27))
    monkeypatch.setattr(patterns, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    monkeypatch.setattr(patterns, "Performer", lambda group: None)

    def burst(member, index, runs):
        clock[0] += (runs + 1) * (latency + sizes[index] / bytes_per_second)
        return [(latency + sizes[index] / bytes_per_second, 0.0)] * runs

    monkeypatch.setattr(patterns._PatternRank, "_burst", burst)
    monkeypatch.setattr(patterns._PatternRank, "_broadcast", lambda *_: None)
    member = patterns._PatternRank(
        [Pattern("all-reduce", (0, 1))], RankContext(0, 2, 2), None, find_device("cpu"), sizes
    )
    (curve,) = member.lead(1.0, lambda share: None)
    # Nine runs of all sizes would take two minutes, those of 2 MiB 1.9 seconds and of 4 MiB 3.8.
    assert curve.sizes == sizes[: len(curve.sizes)] and curve.sizes[-1] == 2**21
    assert clock[0] < 8
    assert curve.at(2**26) == pytest.approx(2**26 / bytes_per_second, rel=0.01)


# -- real ranks -------------------------------------------------------------------------------------


def measure_three(**choices: object) -> tuple[Cluster, list[tuple[str, float]]]:
    """The network of three ranks, and what is reported; as its error asks for, measured again if no bandwidth shows.

    On a busy machine ranks may wait so long for their cores that 4 MiB take as long as 4 B.
    """
    reports: list[tuple[str, float]] = []
    for _ in range(10):
        reports.clear()
        try:
            cluster = dp.measure_network(
                3, backend="gloo", sizes=SIZES, seconds=0.3, on_progress=lambda *what: reports.append(what), **choices
            )
        except RunError as error:
            if "which shows no bandwidth" not in str(error):
                raise
        else:
            return cluster, reports
    pytest.fail("no bandwidth in ten measurements")


@pytest.fixture(scope="module")
def measured() -> tuple[Cluster, list[tuple[str, float]]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return measure_three(name="mine")


@pytest.mark.processes
def test_three_ranks_give_a_link_and_all_reduces_of_two_and_three(measured):
    cluster, _ = measured
    measure = cluster.measured
    assert (cluster.name, cluster.gpus, cluster.gpus_per_node, cluster.memory) == ("mine", 3, 3, None)
    assert (measure.backend, measure.ranks, measure.between) == ("gloo", 3, None)
    assert [group.gpus for group in measure.all_reduce] == [2, 3]
    assert measure.exchange_between is None
    curves = (measure.inside, measure.exchange_inside, *(group.curve for group in measure.all_reduce))
    for curve in curves:
        assert curve.sizes == SIZES
        assert min(curve.runs) >= MINIMUM_RUNS
        # A transfer needs a core, and each rank has only one.
        assert all(0 < share <= 1 for share in curve.computing)
    # Of processor time, not of seconds, and of all patterns: ranks wait for cores on a busy machine.
    computed = [sum(curve.seconds[size] * curve.computing[size] for curve in curves) for size in (0, 2)]
    assert computed[1] > computed[0], "4 MiB take more of a processor than 4 B"
    assert measure.copy_seconds_per_byte > 0
    assert cluster.inside.latency == measure.inside.line.latency
    assert cluster.inside.bandwidth == 1 / measure.inside.line.seconds_per_byte
    assert "measured between two ranks" in cluster.inside.source
    assert "not measured, there was one node" in cluster.between.source


@pytest.mark.slow
@pytest.mark.processes
def test_every_schedule_is_measured_if_asked_for(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    cluster, _ = measure_three(schedules=True)
    assert dp.load(dp.save(cluster, tmp_path / "mine.json")) == cluster
    expected = {"library", *ALL_REDUCES} - {"hierarchical"}
    for ranks in (2, 3):
        curves = {each.pattern: each.curve for each in cluster.measured.schedules if each.gpus == ranks}
        assert set(curves) == expected
        times = all_reduce_times(cluster, ranks, SIZES[1])
        assert times == {pattern: curve.seconds[1] for pattern, curve in curves.items()}
        pattern, _ = fastest_all_reduce(Network(cluster, "measured"), ranks, SIZES[1])
        assert times[pattern] == min(times.values())
    assert "ring of 3" in cluster.measured.table()


@pytest.mark.processes
def test_progress_names_each_pattern_and_only_rises(measured):
    _, reports = measured
    assert list(dict.fromkeys(what.partition(": waiting for")[0] for what, _ in reports)) == [
        "starting",
        "transfers between ranks 0 and 1",
        "exchanges between ranks 0 and 1",
        "all-reduces of 2 ranks",
        "all-reduces of 3 ranks",
    ]
    shares = [share for _, share in reports]
    assert shares == sorted(shares)
    assert 0.5 < shares[-1] <= 1


@pytest.mark.processes
def test_the_planner_accepts_the_saved_file(measured, tmp_path):
    cluster, _ = measured
    place = find_cluster(str(dp.save(cluster, tmp_path / "mine.json")), gpus=2)
    profile = profile_from_times(make_graph([()], None, [SIZES[1]]), [lambda b: 1e-1 * b])
    plan = dp.plan(profile, place, 16)
    assert (plan.network_model, plan.layers[0].gpu_count) == ("measured", 2)
    assert plan.layers[0].sync == cluster.measured.all_reduce[0].curve.seconds[1]


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "phrase"),
    [
        ({"ranks": 1}, InvalidValueError, "ranks must be at least 2, got 1"),
        ({"sizes": [4]}, InvalidValueError, r"sizes must be at least two multiples of 4 bytes, got \[4\]"),
        ({"sizes": [4, 6]}, InvalidValueError, "multiples of 4 bytes"),
        ({"sizes": [0, 4]}, InvalidValueError, "multiples of 4 bytes"),
        ({"seconds": 0}, InvalidValueError, "seconds must be positive and finite, got 0"),
        ({"backend": "mpi"}, InvalidValueError, "backend must be one of auto, gloo, nccl, got 'mpi'"),
        ({"sizes": [4, 2**50]}, RunError, "2 ranks with buffers of 1024.0 TiB need about"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_process_starts(arguments, error, phrase, monkeypatch):
    monkeypatch.setattr("deeppool.processes.launcher.ManagedProcess", None)
    with pytest.raises(error, match=phrase):
        dp.measure_network(**{"ranks": 2, "backend": "gloo", **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_without_a_gpu_is_refused():
    with pytest.raises(DeviceUnavailableError, match=r"cuda was requested, .*use --backend gloo, or see: deeppool env"):
        dp.measure_network(2, backend="nccl")


@pytest.mark.gpu
@pytest.mark.processes
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_nccl_ranks_are_measured_on_a_gpu_each():
    cluster = dp.measure_network(2, backend="nccl", sizes=(4, 2**20, 2**26), seconds=2)
    assert cluster.measured.backend == "nccl"
    assert cluster.memory == torch.cuda.get_device_properties(0).total_memory
    assert cluster.inside.bandwidth > 1e9


# -- faults -----------------------------------------------------------------------------------------


ranks_below = partial(running, "profiling.network.rank")


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_measurement_and_is_named(victim, monkeypatch):
    monkeypatch.chdir(ROOT)
    everything: list[psutil.Process] = []

    def kill(what: str, share: float) -> None:
        if what.startswith("transfers") and not everything:
            everything.extend(ranks_below())
            everything[victim].send_signal(signal.SIGKILL)

    with pytest.raises(RankFailedError, match=f"rank {victim} was killed by signal 9 while the network") as error:
        dp.measure_network(2, backend="gloo", sizes=SIZES, seconds=LONG, on_progress=kill)
    assert "\n" not in str(error.value)
    assert len(everything) == 2
    assert all(map(gone, everything))


@pytest.mark.slow
@pytest.mark.processes
def test_a_stopped_rank_ends_the_measurement_and_is_named(monkeypatch):
    monkeypatch.chdir(ROOT)
    everything: list[psutil.Process] = []

    def stop(what: str, share: float) -> None:
        if what.startswith("transfers") and not everything:
            # Not before: while it imports torch on a busy machine a rank is silent for longer.
            monkeypatch.setattr("deeppool.processes.hang_detector.SILENT_SECONDS", 4.0)
            monkeypatch.setattr("deeppool.processes.hang_detector.LATE_SECONDS", 3.0)
            everything.extend(ranks_below())
            everything[1].send_signal(signal.SIGSTOP)

    with pytest.raises(
        RankFailedError,
        match=r"rank 1 hangs: no heartbeat for \d+ s .* waited for by rank 0 in measuring",
    ):
        dp.measure_network(2, backend="gloo", sizes=SIZES, seconds=LONG, on_progress=stop)
    assert len(everything) == 2
    assert all(map(gone, everything))


COMMAND = """
import signal
# A job that a shell put into the background ignores Ctrl-C, and so would its children: these tests may be one.
signal.signal(signal.SIGINT, signal.default_int_handler)
import contextlib, sys
import deeppool.cli.network
from deeppool.cli import main
from deeppool.cli.output import progress
@contextlib.contextmanager
def printed_progress(interrupted):
    with progress(interrupted):
        yield lambda what, share: print(what, flush=True)
sys.modules["deeppool.cli.network"].progress = printed_progress
main()
"""


@contextlib.contextmanager
def measuring(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """Starts ``deeppool network``; yields it with its ranks once it measures."""
    command = [sys.executable, "-c", COMMAND, "network", "--ranks", "2", "--backend", "gloo", "--seconds", str(LONG)]
    with subprocess.Popen(
        [*command, "-o", str(folder / "mine.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
    ) as launcher:
        try:
            assert any(line.startswith("transfers") for line in launcher.stdout)
            yield launcher, ranks_below(launcher.pid)
        finally:
            launcher.kill()


@pytest.mark.slow
@pytest.mark.processes
def test_control_c_ends_every_process_and_saves_nothing(tmp_path):
    with measuring(tmp_path) as (launcher, everything):
        os.killpg(launcher.pid, signal.SIGINT)
        _, error = launcher.communicate(timeout=60)
    assert (launcher.returncode, len(everything)) == (1, 2)
    assert error == "error: interrupted; every process was ended, nothing was saved\n"
    assert all(map(gone, everything))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.processes
def test_ranks_do_not_outlive_a_killed_command(tmp_path):
    with measuring(tmp_path) as (launcher, everything):
        launcher.kill()
    wait_until(lambda: all(map(gone, everything)), 60, everything)
    assert len(everything) == 2
    assert not (tmp_path / "mine.json").exists()


# -- the command, and torchrun ----------------------------------------------------------------------


@pytest.fixture(autouse=True)
def in_a_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def test_the_command_prints_a_table_and_the_next_command(deeppool, monkeypatch):
    calls = []
    made = Cluster(4, "mine", measured=measured_network({2: (1e-4, 1e-3, 1e-2), 4: (1e-3, 1e-2, 1e-1)}))
    monkeypatch.setattr(measure, "measure_network", lambda *of, **options: calls.append((of, options)) or made)
    code, out, _ = deeppool("network", "--ranks", "4", "--sizes", "8,4", "--seconds", "5", "-o", "mine.json")
    assert (code, dp.load("mine.json")) == (0, made)
    assert made.measured.table() in out
    assert out.endswith("Plan with it: deeppool plan PROFILE … --cluster mine.json\n")
    (of, options) = calls[0]
    assert (of, options["sizes"], options["seconds"], options["name"]) == ((4,), (8, 4), 5.0, "mine")


def test_a_file_that_cannot_be_written_is_refused_before_the_measurement(deeppool, monkeypatch):
    monkeypatch.setattr("deeppool.processes.launcher.ManagedProcess", None)
    code, out, error = deeppool("network", "--ranks", "2", "-o", "nowhere/mine.json")
    assert (code, out) == (1, "")
    assert error.startswith("error: cannot write nowhere/mine.json: there is no folder nowhere")


def given_by_torchrun(rank: int, ranks: int, per_node: int, port: int) -> dict[str, str]:
    """The environment that torchrun gives a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(per_node),
        "LOCAL_RANK": str(rank % per_node),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def start_as_torchrun_does(rank: int, ranks: int, per_node: int, port: int, output: Path, *more: str):
    """One rank's process, with the environment that torchrun gives it."""
    command = [sys.executable, "-m", "deeppool.cli", "network", "--backend", "gloo", "--sizes", "4,65536,33554432"]
    return subprocess.Popen(
        [*command, "--seconds", "0.3", "-o", str(output), *more],
        env={**os.environ, **given_by_torchrun(rank, ranks, per_node, port)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.processes
def test_under_torchrun_on_two_nodes_rank_0_saves_both_links(tmp_path):
    port, output = free_port(), tmp_path / "mine.json"
    # Two "nodes" of this machine, of one rank and the next of one: what matters is who talks to whom.
    started = [start_as_torchrun_does(rank, 2, 1, port, output, "--json") for rank in range(2)]
    said = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    assert said[1][0] == ""
    assert json.loads(said[0][0])["format"] == "deeppool/cluster"
    cluster = find_cluster(str(output), 2)
    assert (cluster.gpus_per_node, cluster.measured.inside, cluster.measured.exchange_inside) == (1, None, None)
    assert cluster.measured.exchange_between.seconds[0] > 0
    assert cluster.between.latency == cluster.measured.between.line.latency
    assert "between ranks of two nodes" in cluster.between.source


def test_under_torchrun_the_number_of_ranks_is_torchruns(deeppool, monkeypatch):
    for name, value in given_by_torchrun(0, 2, 2, free_port()).items():
        monkeypatch.setenv(name, value)
    code, _, error = deeppool("network", "--backend", "gloo", "-o", "mine.json", "--ranks", "2")
    assert (code, error.startswith("error: --ranks 2 was given, but torchrun")) == (1, True)


@pytest.mark.parametrize("rank", [0, 1])
def test_under_torchrun_rank_0_alone_needs_the_folder_of_the_file(deeppool, monkeypatch, rank):
    for name, value in given_by_torchrun(rank, 2, 1, free_port()).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(measure, "join_measurement", lambda **options: None)
    code, _, error = deeppool("network", "--backend", "gloo", "-o", "nowhere/mine.json")
    refused = "error: cannot write nowhere/mine.json: there is no folder nowhere"
    assert (code, error.startswith(refused)) == ((1, True) if rank == 0 else (0, False))
