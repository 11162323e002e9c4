"""Small plans, timelines and a live run, written out so that a test can say what a figure must show."""

from dataclasses import replace

from hypothesis import strategies as st

from deeppool.base.timeline import Span, Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.planning.layer_assignment import LayerAssignment
from deeppool.planning.plan import Plan
from deeppool.records.run_record import BackgroundResult, ForegroundResult, Phase, RunRecord, TimeSummary, summarise
from deeppool.records.training_record import Metrics, TrainingRecord
from deeppool.simulation.plan.simulate import simulate


def layer(name, gpu_count, *, forward, backward=0.0, reshard=0.0, sync=0.0, single_gpu_time=None):
    time = reshard + forward + backward + sync
    single = time if single_gpu_time is None else single_gpu_time
    return LayerAssignment(
        name=name,
        predecessors=(),
        gpu_count=gpu_count,
        gpus=tuple(range(gpu_count)),
        time=time,
        amplification=time * gpu_count / single,
        reshard=reshard,
        forward=forward,
        backward=backward,
        sync=sync,
        single_gpu_time=single,
    )


def plan_of(*layers, gpus=4, limit=2.0, provenance="measured", extrapolated=()):
    """The layers as a chain."""
    layers = tuple(replace(x, predecessors=(i - 1,) if i else ()) for i, x in enumerate(layers))
    time = sum(x.time for x in layers)
    gpu_seconds = sum(x.time * x.gpu_count for x in layers)
    return Plan(
        model="tiny",
        input_shape=(3, 8, 8),
        graph_fingerprint="g",
        parameter_bytes=1000,
        profile_fingerprint="p",
        device="cpu",
        device_name="Test CPU",
        precision="fp32",
        provenance=provenance,
        extrapolated_layers=extrapolated,
        cluster=Cluster(gpus),
        network_model="ring",
        gpu_counts=(1, 2),
        gpus=gpus,
        global_batch=64,
        amplification_limit=limit,
        limit_scope="layer",
        layers=layers,
        iteration_time=time,
        data_parallel_iteration_time=time,
        single_gpu_iteration_time=sum(x.single_gpu_time for x in layers),
        gpu_seconds=gpu_seconds,
        amplification=1.0,
        exempt_layers=(),
        optimality="exact",
        search_time=0.0,
    )


def two_layer_plan(gpus=4):
    """conv on all GPUs, then fc on one: 10 + 5 ms forward, 20 + 8 ms backward, 1 ms of sync, 2 x 1 ms of reshard."""
    return plan_of(
        layer("conv", gpus, forward=0.010, backward=0.020, sync=0.001, single_gpu_time=0.100),
        layer("fc", 1, forward=0.005, backward=0.008, reshard=0.002),
        gpus=gpus,
    )


def run_of(background=True):
    plan = two_layer_plan()
    measured = [Span(gpu, "forward", "stage 0", 0.0, 0.016) for gpu in range(4)]
    measured += [Span(gpu, "backward", "stage 0", 0.020, 0.050) for gpu in range(4)]
    if background:
        measured += [Span(gpu, "background", "mobilenet_v2", 0.010, 0.030) for gpu in range(4)]
    alone = Phase(TimeSummary(0.050, 0.060, 0.052, 20), 1230.0, (0.2, 0.4, 0.6, 0.6))
    front = ForegroundResult(TimeSummary(0.055, 0.080, 0.058, 30), 1103.0, (0.1,) * 4, alone, None, 0.115, 2.3, 2.0)
    back = BackgroundResult("mobilenet_v2", 8, "SCHED_IDLE", 30.0, 100.0, 0.3, 0.667, 6.9, 6.8, "stopped")
    return RunRecord(
        model="tiny",
        plan_iteration_time=plan.iteration_time,
        global_batch=64,
        ranks=4,
        cores=2,
        device="cpu",
        device_name="Test CPU",
        backend="gloo",
        policy="priority" if background else "none",
        foreground=front,
        background=back if background else None,
        stages=(),
        timeline=Timeline("tiny, one iteration", "measured", 4, tuple(measured)),
        plan_timeline=simulate(plan).timeline,
        notes=(),
        date="2026-11-21T05:00:00",
        versions={},
    )


def training_of(losses=(2.5, 2.0, 1.5), seconds=(0.30, 0.20, 0.25), planned=0.1, accumulation=1):
    """A training that went on from update 4."""
    updates = tuple(
        Metrics(number, loss, time, 64 / time, 0.01)
        for number, (loss, time) in enumerate(zip(losses, seconds, strict=True), start=5)
    )
    return TrainingRecord(
        model="tiny",
        global_batch=64,
        accumulation=accumulation,
        ranks=2,
        cores=2,
        device="cpu",
        device_name="Test CPU",
        plan_iteration_time=planned,
        iteration_time=summarise(list(seconds)),
        metrics=updates,
        resumed_from="checkpoints/4.pt",
        checkpoint=None,
        restarts=0,
        stages=(),
        proposal=None,
        switched=False,
        timeline=Timeline("tiny, one update", "measured", 2, (Span(0, "forward", "stage 0", 0.0, 0.1),)),
        date="2026-11-21T05:00:00",
        versions={},
    )


FOREGROUND_KINDS = ("forward", "backward", "reshard", "sync", "update", "idle")


@st.composite
def timelines(draw, max_gpus=5):
    """A foreground and a background on each GPU; each is a chain of spans, some of them touching."""
    gpus = draw(st.integers(1, max_gpus))
    seconds = st.floats(1e-7, 0.5)
    spans = []
    for gpu in range(gpus):
        for kinds in (FOREGROUND_KINDS, ("background",)):
            now = 0.0
            for kind, name, gap, duration in draw(
                st.lists(
                    st.tuples(
                        st.sampled_from(kinds), st.text("abc.<&", max_size=4), st.one_of(st.just(0.0), seconds), seconds
                    ),
                    max_size=4,
                )
            ):
                spans.append(Span(gpu, kind, name, now + gap, now + gap + duration))
                now += gap + duration
    return Timeline("drawn", draw(st.sampled_from(["predicted", "measured"])), gpus, tuple(spans))
