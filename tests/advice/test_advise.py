"""Verdicts on models whose times and transfers can be computed by hand."""

from dataclasses import replace

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.advice.advise import cluster_option
from deeppool.advice.record import Advice, Finding
from deeppool.advice.techniques import crossover, ordered_transfers, two_waves
from deeppool.cluster.cluster import Cluster, Link
from deeppool.errors import InvalidValueError, PlanError
from deeppool.planning.evaluate.baselines import DataParallelComparison, DataParallelTime
from deeppool.planning.request import cost_table
from deeppool.profiling.iteration_check import IterationCheck
from deeppool.profiling.table import Profile
from tests.strategies import make_graph, profile_from_times

MIB = 2**20
LINK = Link(1e9, 0.0, "by hand")
FOUR = Cluster(4, "by hand", 1, LINK, LINK)
SIZES = (1, 2, 4, 8)


def advise(profile: Profile, cluster: Cluster = FOUR) -> dict[str, Finding]:
    return {finding.technique: finding for finding in dp.advise(profile, cluster, 8).findings}


def chain(*layers: tuple[float, float, int]) -> Profile:
    """Layers in sequence, each with seconds of its forward, seconds per sample, and bytes of its parameters."""
    edges = [(), *((i,) for i in range(len(layers) - 1))]
    graph = make_graph(edges, None, [size for *_, size in layers], [0 for _ in layers])
    times = [lambda batch, fixed=fixed, each=each: fixed + batch * each for fixed, each, _ in layers]
    return profile_from_times(graph, times, SIZES)


def test_a_model_that_scales_by_itself_stays_with_ddp() -> None:
    found = dp.advise(chain((0, 1e-3, 0), (0, 2e-3, 0)), FOUR, 8)
    assert [one.seconds for one in found.plan.comparison.data_parallel] == pytest.approx([24e-3, 12e-3, 6e-3])
    assert {each.technique: each.verdict for each in found.findings} == {
        "burst parallelism": "no",
        "collocation": "no",
        "ordered transfers": "no",
        "crossover": "no",
        "two waves": "no",
        "partial all-reduces": "unknown",
    }
    assert str(found).endswith("keep DDP (6 ms on 4)")
    assert found.explain().endswith("whose record says how long each rank computes")


def test_a_layer_that_no_further_gpu_speeds_up_leaves_time_for_a_second_job() -> None:
    # Of 8 ms on 4 GPUs the second layer takes 6, and 6 on one: three GPUs are idle for 6 of 8 ms, of which a second job
    # makes 8 samples in 14 ms per GPU: 2.29 times the samples of DDP. But by DDP the first job takes 14 ms on one GPU,
    # and leaves three to the second one.
    found = advise(chain((0, 1e-3, 0), (6e-3, 0, 0)))["collocation"]
    idle = 3 * 6 / 8
    assert found.verdict == "yes"
    assert found.gain == pytest.approx((1 + idle / 4) / (8 / 14 + 3 / 4))
    assert found.evidence.endswith(
        "2.29 times as many as with DDP, and 1.18 times as much, each relative to all GPUs, as DDP on 1 with the second"
        " job on the others"
    )


def test_a_second_job_is_given_gpus_where_the_first_one_hardly_needs_them() -> None:
    # On two GPUs DDP takes 6.2 ms, on four 6.1; of these three GPUs are idle for nearly all.
    found = advise(chain((0, 5e-5, 0), (6e-3, 0, 0)))["collocation"]
    assert found.verdict == "no"
    assert found.gain == pytest.approx((1 + 3 * 6 / 6.1 / 4) / (6.1 / 6.4 + 3 / 4))


def test_a_foreground_that_is_faster_by_the_gpus_of_the_second_job_makes_up_for_them() -> None:
    # DDP takes 6 ms on one GPU, and longer on more. The fastest plan has the first layer on four and the second on one,
    # in 3 ms of which 2 GPUs are busy: both ways train as much as four GPUs each alone, 8 samples in 6 ms.
    found = dp.advise(chain((0, 0.5e-3, 0), (0, 0.25e-3, 4_000_000)), FOUR, 8)
    assert (found.plan.comparison.fastest.gpus, found.plan.iteration_time) == (1, pytest.approx(3e-3))
    assert found.findings[1].gain == pytest.approx(1)
    assert found.findings[1].verdict == "no"


def test_a_second_job_spends_time_on_its_updates_too() -> None:
    # As above, and 2 ms of update for the second layer: three GPUs are idle for 8 of 10 ms, and a step takes 16.
    found = advise(replace(chain((0, 1e-3, 0), (6e-3, 0, 1)), update_per_byte=2e-3))["collocation"]
    assert found.gain == pytest.approx((1 + 3 * 8 / 10 / 4) / (10 / 16 + 3 / 4), rel=1e-5)


def test_gradients_that_nothing_hides_are_hidden_by_a_second_job() -> None:
    # One layer: its all-reduce starts when all is computed. A ring over 4 sends 2 * 3/4 of the bytes: 12 ms.
    size = int(8e-3 * 1e9)
    found = advise(chain((12e-3, 0, size)), replace(FOUR, gpus=4))
    # DDP is fastest on one GPU, 12 ms, where each job has one of its own; two jobs that cross over take 2 * 12.
    assert found["crossover"].gain == pytest.approx(0.5)
    found = advise(chain((0, 6e-3, size)))
    # DDP: 48 on one GPU, 24 + 8 on two, 12 + 12 on four. Two jobs: 24 on four, instead of 32 on two each.
    assert found["crossover"].gain == pytest.approx(32 / 24)
    assert found["crossover"].verdict == "yes"
    assert found["crossover"].evidence.endswith("1.33 times as fast as by DDP on half of the GPUs each")


def test_two_jobs_cross_over_on_the_gpus_on_which_that_is_fastest() -> None:
    # A node has four GPUs, whose ring sends 3/2 of 8 ms; with those of a second node it takes ten times as long.
    nodes = Cluster(6, "by hand", 4, LINK, Link(1e8, 0.0, "by hand"))
    found = advise(chain((0, 6e-3, int(8e-3 * 1e9))), nodes)["crossover"]
    # On four GPUs 12 ms of computing and 12 of transfers; DDP takes 24 on four and 32 on two.
    assert found.gain == pytest.approx(32 / 24)
    assert found.verdict == "yes"
    assert "compute 12 ms and transfer 12 ms a step each on 4 GPUs" in found.evidence


def test_jobs_and_waves_that_send_all_at_once_are_compared_with_ddp_that_does_too() -> None:
    # Four layers of 10 MiB, in two buckets by DDP's default, of 6 steps by a ring of four GPUs that take 10 ms each:
    # 120 ms, and 60 in one. A GPU computes for 100 ms on any number of them, all of it in the forward.
    slow = Link(1e15, 10e-3, "by hand")
    profile = replace(chain(*[(25e-3, 0, 10 * MIB)] * 4), device="cuda", device_name="NVIDIA H200")
    fastest = dp.advise(profile, Cluster(4, "by hand", 1, slow, slow), 8)
    assert [one.seconds for one in fastest.plan.comparison.data_parallel] == pytest.approx([0.1, 0.12, 0.16])
    # On four GPUs alone, as if they were the only ones.
    costs = cost_table(profile, Cluster(4, "by hand", 1, slow, slow), 8)
    only = DataParallelComparison(0.16, (DataParallelTime(4, 0.16),))
    assert crossover(profile, costs, only).gain == pytest.approx(2 * 0.16 / 0.2)
    waves = two_waves(profile, costs, only)
    assert "two waves are 1.60 times as fast, but one of twice the batch on 1 GPU" in waves.evidence
    # On one GPU twice the batch takes as long as one wave here.
    assert (waves.verdict, waves.gain) == ("no", pytest.approx(0.5))


def test_transfers_in_the_order_of_need_are_compared_with_ddp_in_its_best_bucket() -> None:
    # As above, but layers of 25 ms a sample: on four GPUs 200 ms, and 120 ms of transfers by default or 60 in one.
    slow = Link(1e15, 10e-3, "by hand")
    found = advise(chain(*[(0, 25e-3, 10 * MIB)] * 4), Cluster(4, "by hand", 1, slow, slow))["ordered transfers"]
    assert "320 ms by DDP (260 ms with its best bucket size)" in found.evidence


def test_two_jobs_must_fit_into_memory() -> None:
    graph = chain((0, 6e-3, int(8e-3 * 1e9)))
    small = advise(graph, replace(FOUR, memory=40e6))["crossover"]
    assert small.verdict == "no"
    assert "but they need" in small.evidence


def half_forward(parameters: int, activation: int) -> Profile:
    """A layer of an H200 of 6 ms, half of it forward, however many samples."""
    made = chain((3e-3, 0, parameters))
    layers = tuple(replace(layer, activation_bytes=activation) for layer in made.graph.layers)
    measurements = tuple(replace(each, backward=each.forward) for each in made.measurements)
    graph = replace(made.graph, layers=layers)
    return replace(made, graph=graph, measurements=measurements, device="cuda", device_name="NVIDIA H200")


def test_two_waves_are_worth_it_where_a_gpu_has_time_but_no_memory_for_twice_the_batch() -> None:
    # As long on one GPU as on four. Two waves train two batches in it.
    profile = half_forward(MIB, activation=10 * MIB)
    # On each of four GPUs 2 samples of 10 MiB, and a MiB of weights, gradients and momentum each; of two replicas 6.
    two = {
        memory: advise(profile, replace(FOUR, memory=memory * MIB))["two waves"] for memory in (25.9, 26.1, 42.9, 43.1)
    }
    assert {memory: finding.verdict for memory, finding in two.items()} == {
        25.9: "no", 26.1: "yes", 42.9: "yes", 43.1: "no"
    }  # fmt: skip
    # A ring over 4 sends 3/2 of a MiB at 1 GB/s. A replica trains in every other iteration, its sum after its passes.
    # DDP has no room but on four GPUs, or for 43.1 MiB on two, which send a MiB.
    exchange = 1.5 * MIB / 1e9
    assert two[25.9].gain == pytest.approx(2, rel=0.01)
    # Twice the batch takes two micro-steps, or as long as one where 40 MiB of samples fit at once.
    for memory in (26.1, 42.9):
        assert two[memory].gain == pytest.approx((2 * 6e-3 + exchange) / (6e-3 + exchange), rel=0.01)
    assert two[43.1].gain == pytest.approx(1, rel=0.05)
    assert "but they need" in two[25.9].evidence
    assert "one of twice the batch" in two[43.1].evidence
    assert advise(profile, replace(FOUR, memory=None))["two waves"].verdict == "unknown"
    # One core runs one pass at a time.
    assert advise(replace(profile, device="cpu"))["two waves"].verdict == "no"
    # Without a backward no pass of one wave runs beside one of the other, and nothing is gained; nor where twice the
    # samples take twice as long.
    assert advise(chain((6e-3, 0, MIB)))["two waves"].verdict == "no"
    assert advise(chain((0, 6e-3, 0)))["two waves"].verdict == "no"


def test_two_waves_are_compared_with_twice_the_batch_wherever_each_is_fastest() -> None:
    # 20 MB of parameters take 20 ms on two GPUs and 30 on four: DDP and two waves are fastest on one GPU, where a
    # second wave hides a half of each.
    profile = half_forward(20_000_000, activation=10_000_000)
    # 120 MB of two replicas and 80 of samples. One replica holds twice the batch with 220 MB on one GPU, 140 on two.
    waves = advise(profile, replace(FOUR, memory=201e6))["two waves"]
    # The average of both waves' gradients moves 100 MB at 4.8 TB/s, and so does a second update, while both compute.
    moved = 5 * 20e6 / 4.8e12
    assert (waves.verdict, waves.gain) == ("yes", pytest.approx(6e-3 / (3e-3 * (6e-3 + moved) / 6e-3 + moved)))
    assert "sums take 0 s on 1 GPU: two waves are 1.98 times as fast" in waves.evidence
    # In two micro-steps of 6 ms each, of which they take 6 for as many samples; on two GPUs it takes 26.
    assert waves.evidence.endswith(", and 1.98 times as fast as one of twice the batch on 1 GPU in 2 micro-steps")
    larger = advise(profile, replace(FOUR, memory=221e6))["two waves"]
    assert larger.verdict == "no"
    assert larger.evidence.endswith(
        "one of twice the batch on 1 GPU, which 210.8 MiB hold, is 1.01 times as fast as they are"
    )
    # Exchanges are hidden too: 12 ms, and 1.5 MB at 1 GB/s after them by DDP; twice the batch sends as much in 24.
    hidden = replace(chain((0, 6e-3, 1_000_000)), device="cuda", device_name="NVIDIA H200")
    graph = replace(hidden.graph, layers=tuple(replace(layer, activation_bytes=1) for layer in hidden.graph.layers))
    found = advise(replace(hidden, graph=graph))["two waves"]
    assert (found.verdict, found.gain) == ("yes", pytest.approx((24 + 1.5) / 24, rel=0.01))
    unsure = advise(replace(hidden, graph=graph, error=0.1))["two waves"]
    assert unsure.verdict == "unknown"
    assert "and 1.06 times as fast as one of twice the batch" in found.evidence


def test_the_baseline_is_ddp_where_it_is_fastest() -> None:
    # 64 MiB take 100 ms over this link: four GPUs lose all that they gain.
    found = dp.advise(chain((0, 1e-3, 0), (0, 1e-4, 64 * MIB)), FOUR, 8)
    assert found.plan.comparison.fastest.gpus == 1
    burst = found.findings[0]
    assert burst.verdict == "yes"
    # The first layer on four GPUs, the second on one.
    assert burst.gain == pytest.approx((8e-3 + 0.8e-3) / (2e-3 + 0.8e-3))
    # Not on the default cluster of its device.
    assert (
        burst.next_step
        == "deeppool plan drawn.json --gpus 4 --global-batch 8 --cluster CLUSTER.json -o burst-plan.json"
    )
    assert found.findings[2].evidence == "DDP has nothing to send where it is fastest"


def test_the_baseline_fits_into_memory() -> None:
    # 64 MiB of parameters take 67 ms on two GPUs and 100 on four; a GPU holds 192 MiB of the model, and 2 MiB a sample.
    profile = chain((0, 1e-3, 0), (0, 1e-4, 64 * MIB))
    layers = tuple(replace(layer, activation_bytes=MIB) for layer in profile.graph.layers)
    profile = replace(profile, graph=replace(profile.graph, layers=layers))
    assert dp.advise(profile, replace(FOUR, memory=208 * MIB), 8).plan.comparison.fastest.micro_steps == 1
    found = dp.advise(profile, replace(FOUR, memory=207 * MIB), 8)
    needed = {one.gpus: (one.micro_steps, one.memory) for one in found.plan.comparison.data_parallel}
    assert needed == {1: (2, 200 * MIB), 2: (1, 200 * MIB), 4: (1, 196 * MIB)}
    assert found.explain().splitlines()[1] == (
        "DDP takes 8.8 ms on 1 in 2 micro-steps, 71.5 ms on 2, 103 ms on 4 GPUs: fastest on 1; whole batches do not "
        "fit, so that it accumulates gradients over micro-steps: 2 on 1 GPU (a BatchNorm has the statistics of each)"
    )
    # Two micro-steps on one GPU; the plan has the first layer on four GPUs, the second on one.
    assert found.findings[0].gain == pytest.approx(8.8e-3 / 2.8e-3)
    ordered = found.findings[2]
    assert (ordered.verdict, ordered.evidence) == ("no", "DDP has nothing to send where it is fastest")
    # Two jobs that train apart are on GPUs of their own.
    assert "times as fast as by DDP on half of the GPUs each" in found.findings[3].evidence
    with pytest.raises(
        PlanError, match=r"no plan of drawn fits: .* needs 196\.0 MiB, 1\.0 MiB more than its 195\.0 MiB"
    ):
        dp.advise(profile, replace(FOUR, memory=195 * MIB), 8)


def test_a_plan_that_fits_where_ddp_does_not_is_worth_it() -> None:
    # Two branches of 8 MiB of parameters each, of which a GPU holds 24: both do not fit on one, side by side they do.
    graph = make_graph([(), (0,), (0,), (1, 2)], None, [0, 8 * MIB, 8 * MIB, 0], [0] * 4)
    profile = profile_from_times(graph, [lambda batch: 1e-3 * batch] * 4, SIZES)
    found = dp.advise(profile, Cluster(4, "by hand", 4, LINK, LINK, memory=30 * MIB), 8)
    assert str(found) == "drawn, batch 8 on 4 GPUs: worth it over DDP: burst parallelism"
    assert [(each.verdict, each.gain) for each in found.findings[:-1]] == [("yes", None), *[("no", None)] * 4]
    assert "fits and takes" in found.findings[0].evidence
    assert (
        found.explain()
        .splitlines()[1]
        .endswith(" on 4 GPUs, but on 4 GPUs or fewer it does not fit: a GPU needs 48.0 MiB, and has 30.0 MiB")
    )
    assert not figures.of(found).data[0].x


def test_where_further_gpus_only_cost_time_the_advice_is_one_gpu() -> None:
    found = dp.advise(chain((1e-3, 1e-6, 64 * MIB)), FOUR, 8)
    told = found.explain().splitlines()
    assert told[1].endswith("fastest on 1, more make it slower")
    assert found.findings[1].evidence.endswith("leave 75% of the GPU time idle, and DDP on 1 leaves 75%")
    assert {each.verdict for each in found.findings} == {"no"}
    assert told[-1] == "Train on one GPU."
    assert str(found) == "drawn, batch 8 on 4 GPUs: train on one GPU (1.01 ms)"
    alone = dp.advise(chain((0, 1e-3, 0)), replace(FOUR, gpus=1), 8)
    assert alone.explain().splitlines()[:2] == [
        "drawn, global batch 8, 1 GPU (by hand); layer times estimated for drawn",
        "One GPU takes 8 ms",
    ]


def test_the_next_steps_make_the_profile_and_the_plan_that_they_name() -> None:
    # Where nothing is worth it, too: what stays unknown takes a plan to measure.
    found = replace(dp.advise(chain((0, 1e-3, 0), (0, 2e-3, 0)), FOUR, 8), profile_command="make drawn.json")
    heading, *steps = found.explain().splitlines()[-3:]
    assert heading == "Keep DDP, unless a measurement says otherwise:"
    assert steps[0] == "  make drawn.json"
    made = "deeppool plan drawn.json --gpus 4 --global-batch 8 --cluster CLUSTER.json -o plan.json"
    assert steps[1].startswith(f"  {made}, then deeppool train plan.json ")


def test_the_next_steps_name_a_preset_for_clusters_that_are_one() -> None:
    profile = chain((0, 1e-3, 0))
    assert cluster_option(dp.find_cluster("ethernet-25g", 4), profile) == " --cluster ethernet-25g"
    # It has the name of the DGX A100, whose nodes have 8 GPUs.
    assert cluster_option(Cluster(4, gpus_per_node=2), profile) == " --cluster CLUSTER.json"


def test_transfers_in_the_order_of_need_run_beside_the_next_forward() -> None:
    # Forward 10 and 10 ms, and no backward: all gradients are ready at once. A ring over 4 sends 3/2 of the bytes at
    # 1 GB/s: 1 ms for the first layer, 10 for the second. DDP waits for both. In order of need the second is sent
    # beside the first layer's forward, which waits for 1 ms only.
    profile = chain((10e-3, 0, 666_668), (10e-3, 0, 6_666_668))
    found = dp.advise(profile, FOUR, 8)
    baseline = DataParallelTime(4, 31e-3)
    finding = ordered_transfers(profile, cost_table(profile, FOUR, 8), DataParallelComparison(31e-3, (baseline,)))
    assert finding.gain == pytest.approx(31 / 21, rel=1e-3)
    assert finding.verdict == "yes"
    # Patterns are chosen by measured times alone.
    assert "deeppool network -o FILE" in finding.next_step
    # No simulation has the sum of several micro-steps.
    steps = DataParallelComparison(31e-3, (DataParallelTime(2, 30e-3, micro_steps=2), baseline))
    accumulated = ordered_transfers(profile, cost_table(profile, FOUR, 8), steps)
    assert (accumulated.verdict, accumulated.gain) == ("unknown", None)
    assert "DDP sends once in 2 micro-steps where it is fastest" in accumulated.evidence
    # On one GPU nothing is sent, and DDP is faster there.
    assert found.plan.comparison.fastest.gpus == 1


def test_transfers_in_the_order_of_need_may_be_fastest_on_more_gpus_than_ddp() -> None:
    # 40 ms of forward on one GPU, 20 on two, 10 on four, no backward, and gradients of the second layer that take 21.3
    # ms on two GPUs and 32 on four: DDP is fastest on one. In order they are sent beside half of the next forward.
    found = dp.advise(chain((0, 2.5e-3, 1000), (0, 2.5e-3, 21_333_333)), FOUR, 8)
    assert [one.seconds for one in found.plan.comparison.data_parallel] == pytest.approx(
        [0.04, 0.0413, 0.042], rel=1e-2
    )
    ordered = found.findings[2]
    assert (ordered.verdict, ordered.gain) == ("yes", pytest.approx(40 / 31.3, rel=1e-2))
    assert "an iteration takes 31.3 ms on 2 GPUs with them, 40 ms on 1 GPU by DDP" in ordered.evidence


def test_transfers_of_very_many_gpus_are_not_simulated_for_an_advice() -> None:
    graph = make_graph([()], None, [1000], [0])
    profile = profile_from_times(graph, [lambda batch: 1e-3 * batch], SIZES)
    found = dp.advise(profile, Cluster(128, "large", 8, LINK, LINK, memory=None), 128)
    assert found.plan.comparison.fastest.gpus == 128
    ordered = found.findings[2]
    assert (ordered.verdict, ordered.gain) == ("unknown", None)
    assert ordered.evidence == "to simulate transfers of 128 GPUs, on which DDP is fastest, takes minutes"
    assert "dp.compare_transfers(profile, cluster, 128)" in ordered.next_step


def test_a_second_job_needs_memory_beside_the_first() -> None:
    # As above: three GPUs are idle for 6 of 8 ms. A GPU holds 10 MiB a sample of the first layer, 2 samples on four.
    profile = chain((0, 1e-3, 0), (6e-3, 0, 0))
    profile = replace(profile, graph=make_graph([(), (0,)], None, [0, 0], [10 * MIB, 0]))
    unlimited = advise(profile)["collocation"]
    assert unlimited.verdict == "yes"
    # Beside 20 MiB: a batch of 8 needs 80, one of 2 needs 20, in 2 + 6 ms.
    beside = 3 * 6 / 8
    # By itself it may have a larger one, with which it takes less for a sample. DDP of the first job takes 14 ms on one
    # GPU, 10 on two; with 39 MiB three micro-steps of 26 ms on one.
    for memory, batch, seconds, alone, apart in (
        (100, 8, 14e-3, 14e-3 / 8, 8 / 14 + 3 / 4),
        (99, 4, 10e-3, 14e-3 / 8, 8 / 14 + 3 / 4),
        (40, 2, 8e-3, 10e-3 / 4, 8 / 10 + 2 / 4),
        (39, 1, 7e-3, 8e-3 / 2, 8 / 26 + 3 / 4),
    ):
        found = advise(profile, replace(FOUR, memory=memory * MIB))["collocation"]
        other = beside * batch / seconds
        assert found.gain == pytest.approx(min((8 / 8e-3 + other) / (8 / 8e-3), (1 + other * alone / 4) / apart))
    none = advise(profile, replace(FOUR, memory=29 * MIB))["collocation"]
    assert (none.verdict, none.gain) == ("no", pytest.approx(1))
    assert none.evidence.endswith(
        "leave 56% of the GPU time idle, but no room in the 29.0 MiB of a GPU for a second job"
    )


def test_a_gain_within_the_error_of_the_estimate_is_unknown() -> None:
    profile = chain((0, 1e-3, 0), (0.2e-3, 0, 0))
    measured = advise(profile)["collocation"]
    assert measured.gain is not None
    assert measured.verdict == "yes"
    # The condition comes before the numbers, as a terminal cuts the end of a line.
    assert " idle: if nothing interferes, a second job there trains " in measured.evidence
    errors = {"yes": measured.gain - 1 - 1e-6, "unknown": measured.gain - 1 + 1e-6}
    for verdict, error in errors.items():
        found = advise(replace(profile, error=error))["collocation"]
        assert (found.verdict, "median error of estimates" in found.evidence) == (verdict, verdict == "unknown")
    figure = figures.of(dp.advise(replace(profile, error=10.0), FOUR, 8))
    assert "unknown" in " ".join(figure.data[0].text)


@pytest.mark.slow
def test_a_model_is_estimated_or_a_profile_read(tmp_path) -> None:
    profile = chain((0, 1e-3, 0))
    path = dp.save(profile, tmp_path / "mine.json")
    assert dp.advise(str(path), 4, 8).plan.profile_fingerprint == dp.advise(profile, 4, 8).plan.profile_fingerprint
    found = dp.advise("squeezenet1_1", 2, 2, device="h100", input_shape=(3, 64, 64))
    assert found.plan.provenance == "estimated"
    assert "H100" in found.plan.device_name
    assert found.plan.cluster.name == "dgx-h100"
    assert found.profile_command == (
        "deeppool estimate squeezenet1_1 --gpu h100 --input-shape 3,64,64 --precision tf32 --batch-sizes 1,2 "
        "-o squeezenet1_1.json"
    )


def test_advice_may_be_about_a_shipped_profile() -> None:
    found = dp.advise("vgg16-h200", 8, 32)
    assert (found.plan.provenance, found.plan.cluster.name) == ("measured", "dgx-h200")
    assert found.plan.profile_fingerprint == dp.find_profile("vgg16-h200").fingerprint
    assert found.profile_command is None
    next_steps = [finding.next_step for finding in found.findings if finding.next_step]
    assert any(step.startswith("deeppool plan vgg16-h200 ") for step in next_steps)


def test_a_shape_beside_a_profile_is_refused() -> None:
    for model in ("vgg16-h200", dp.find_profile("vgg16-h200")):
        with pytest.raises(InvalidValueError, match="the profile of vgg16 has its own, 3,224,224"):
            dp.advise(model, 8, 32, input_shape=(3, 64, 64))


@pytest.mark.parametrize(
    ("gpus", "batch", "error", "said"),
    [(4, 2, PlanError, "4 GPUs"), (4, 0, InvalidValueError, "global_batch must be at least 1, got 0")],
)
def test_an_impossible_request_says_so_before_anything_is_measured(gpus, batch, error, said) -> None:
    with pytest.raises(error, match=said):
        dp.advise("resnet50", gpus, batch)


def test_the_figure_has_a_bar_for_each_technique_that_takes_no_measurement() -> None:
    found = dp.advise(chain((0, 1e-3, 0), (6e-3, 0, 0)), FOUR, 8)
    assert isinstance(found, Advice)
    bars = figures.of(found).data[0]
    assert list(bars.y) == ["two waves", "crossover", "ordered transfers", "collocation", "burst parallelism"]
    assert list(bars.x) == [finding.gain for finding in reversed(found.findings[:-1])]


@pytest.mark.slow
@pytest.mark.usefixtures("in_the_checkout")
def test_advice_may_be_about_an_emulated_gpu() -> None:
    model = "examples.two_branch:two_branch"
    found = dp.advise(model, 2, 4, device="emulated:h200")
    assert (found.plan.device, found.plan.precision) == ("emulated:h200", "fp32")
    assert found.plan.cluster == dp.find_cluster("dgx-h200", 2)
    assert found.profile_command is not None
    assert found.profile_command.startswith(f"deeppool profile {model} --device emulated:h200 ")
    # Its colon would not be part of a file's name everywhere.
    assert found.profile_command.endswith(" -o examples.two_branch-two_branch.json")
    steps = [finding.next_step for finding in found.findings if finding.next_step.startswith("deeppool plan ")]
    assert steps
    assert all(step.startswith("deeppool plan examples.two_branch-two_branch.json ") for step in steps)


@pytest.mark.parametrize(("size", "gain", "verdict"), [(80_000, "6.0", "unknown"), (24_000, "1.8", "no")])
def test_a_gain_within_the_error_of_a_profile_is_unknown_if_it_would_be_worth_it(
    size: int, gain: str, verdict: str
) -> None:
    # DDP computes 2.01 ms and all-reduces 1.5 x size bytes at 1 GB/s; on one GPU the second layer takes as long, and
    # all-reduces nothing. The layers take 99 times as long as the iterations that were timed.
    profile = chain((0, 1e-3, 0), (1e-5, 0, size))
    times = [(batch, profile.iteration_time(batch)) for batch in SIZES]
    off = tuple(IterationCheck(batch, layers, layers / 99, 0.0, 3) for batch, layers in times)
    burst = advise(replace(profile, checks=off))["burst parallelism"]
    assert f"gains {gain} % over data parallelism" in burst.evidence
    assert "DDP is kept" in burst.evidence
    assert burst.verdict == verdict
