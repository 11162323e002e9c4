"""Published traces: excerpts written by hand in their formats, and the jobs that they say."""

import json
from dataclasses import replace

import pytest

from deeppool.cluster.cluster import Cluster, Link
from deeppool.collectives.transfer_methods import DDP
from deeppool.errors import DocumentError, InvalidValueError
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.simulation.cluster.public_traces import import_trace
from deeppool.simulation.cluster.simulate import simulate_cluster
from deeppool.simulation.transfers.compare import compare_transfers
from tests.strategies import make_graph, profile_from_times

PROFILE = profile_from_times(make_graph([(), (0,)]), [lambda b: 1e-3 * b, lambda b: 8e-3], (1, 8, 16))
CLUSTER = Cluster(8)

PHILLY = [
    {
        "status": "Pass",
        "jobid": "restarted",
        "submitted_time": "2017-10-07 01:00:00",
        "attempts": [
            {
                "start_time": "2017-10-07 01:01:00",
                "end_time": "2017-10-07 01:02:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0"]}],
            },
            {
                "start_time": "2017-10-07 01:10:00",
                "end_time": "2017-10-07 01:13:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu3", "gpu4"]}],
            },
        ],
    },
    {
        "status": "Killed",
        "jobid": "still running",
        "submitted_time": "2017-10-07 00:00:00",
        "attempts": [{"start_time": "2017-10-07 00:01:00", "end_time": None, "detail": []}],
    },
]
HELIOS = """job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
7,u1,v1,16,1,2,COMPLETED,2020-06-09 18:00:00,2020-06-09 18:00:00,2020-06-09 19:00:00,3600,0
9,u1,v1,1,1,1,FAILED,2020-06-09 18:00:30,2020-06-09 18:00:30,2020-06-09 18:01:30,60,0
8,u1,v1,4,1,1,COMPLETED,2020-06-09 18:00:10,2020-06-09 18:00:20,2020-06-09 18:04:20,240,10
6,u1,v1,0,1,1,COMPLETED,2020-06-09 17:00:00,2020-06-09 17:00:00,2020-06-09 18:00:00,3600,0
"""
PAI = """job a,ps,1.0,Terminated,100.0,400.0,600.0,29.3,,CPU
job a,worker,3.0,Terminated,160.0,400.0,600.0,29.3,50.0,MISC
job b,tensorflow,1.0,Terminated,130.0,190.0,600.0,29.3,25.0,T4
job c,tensorflow,1.0,Running,200.0,,600.0,29.3,100.0,T4
"""


def make(tmp_path, trace_format, text, per_gpu_batch=16, **options):
    path = tmp_path / "trace"
    path.write_text(text)
    return import_trace(path, trace_format, {"net": PROFILE}, CLUSTER, per_gpu_batch=per_gpu_batch, **options)


def expected(gpus, seconds):
    """Iterations by the baseline that the durations are read as."""
    return round(seconds / data_parallel_plan(PROFILE, Cluster(gpus), 16 * gpus).iteration_time)


@pytest.mark.parametrize(
    ("trace_format", "text", "jobs"),
    [
        ("philly", json.dumps(PHILLY), [("restarted", 0.0, 4, 60 + 180)]),
        ("helios", HELIOS, [("8", 0.0, 4, 240), ("9", 20.0, 1, 60)]),
        ("pai", PAI, [("job a", 0.0, 2, 300), ("job b", 30.0, 1, 60)]),
    ],
)
def test_a_published_trace_has_its_gpus_arrivals_and_durations(tmp_path, trace_format, text, jobs) -> None:
    workload = make(tmp_path, trace_format, text)
    found = [(job.name, job.arrival, job.gpus, job.iterations, job.batch) for job in workload.jobs]
    assert found == [(name, at, gpus, expected(gpus, seconds), 16 * gpus) for name, at, gpus, seconds in jobs]


def test_under_data_parallelism_on_a_free_cluster_jobs_last_as_recorded(tmp_path) -> None:
    workload = make(tmp_path, "helios", HELIOS)
    simulated = simulate_cluster(workload, CLUSTER, strategy="data-parallel", sources={"net": PROFILE})
    lasted = [job.finish - job.start for job in simulated.jobs]
    assert lasted == pytest.approx([240, 60], rel=1e-3)


def test_durations_are_those_of_ddp_in_its_own_buckets_where_these_are_faster(tmp_path) -> None:
    """DDP sums three of four layers of 8 MiB at once, a run each by itself."""
    graph = make_graph([(), (0,), (1,), (2,)], parameter_bytes=[2**23] * 4)
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * 4)
    profile = replace(profile, measurements=tuple(replace(x, backward=x.forward) for x in profile.measurements))
    link = Link(1e10, 8e-4, "made by hand")
    cluster = Cluster(8, "by hand", 8, link, link)
    (tmp_path / "trace").write_text(HELIOS)
    workload = import_trace(tmp_path / "trace", "helios", {"net": profile}, cluster, per_gpu_batch=4)
    iteration = compare_transfers(profile, replace(cluster, gpus=4), 16).plan(DDP).iteration_time
    assert workload.jobs[0].iterations == round(240 / iteration)


def test_small_jobs_become_backgrounds_and_larger_ones_than_the_cluster_are_left_out_and_counted(tmp_path) -> None:
    workload = make(tmp_path, "helios", HELIOS, background_gpus=1)
    assert [job.role for job in workload.jobs] == ["foreground", "background"]
    assert workload.jobs[1].batch == 16
    assert "2 of 3 jobs that used a GPU (1 larger than 8 GPUs)" in workload.method
    assert [job.name for job in make(tmp_path, "helios", HELIOS, jobs=1).jobs] == ["8"]


def test_a_background_alone_lasts_as_recorded_too_since_its_steps_hold_the_update(tmp_path) -> None:
    graph = make_graph([()], parameter_bytes=[1000])
    profile = replace(profile_from_times(graph, [lambda batch: 1e-3 * batch]), update_per_byte=5e-6)
    (tmp_path / "trace").write_text(HELIOS)
    workload = import_trace(tmp_path / "trace", "helios", {"net": profile}, CLUSTER, per_gpu_batch=4, background_gpus=1)
    alone = simulate_cluster(workload, CLUSTER, sources={"net": profile}).jobs[1].alone_time
    assert alone == pytest.approx(60, rel=1e-3)


def test_a_background_has_at_most_the_largest_batch_of_its_profile(tmp_path) -> None:
    workload = make(tmp_path, "helios", HELIOS, per_gpu_batch=32, background_gpus=1)
    assert [job.batch for job in workload.jobs] == [4 * 32, 16]
    assert workload.jobs[1].iterations == expected(1, 60)
    assert "32 samples a GPU (a background: at most its profile's largest)" in workload.method
    simulated = simulate_cluster(workload, CLUSTER, sources={"net": PROFILE})
    assert all(job.finish for job in simulated.jobs)


@pytest.mark.parametrize("trace_format", ["philly", "helios", "pai"])
@pytest.mark.parametrize("text", ["", "{}", "[1]", "a,b\n1,2\n", '[{"attempts": 3}]', "x,y,1,z,1,2,3,4,many,T4\n"])
def test_another_file_is_refused_with_its_format(tmp_path, trace_format, text) -> None:
    with pytest.raises((DocumentError, InvalidValueError), match=f"not the file of a {trace_format} trace|no job of"):
        make(tmp_path, trace_format, text)


@pytest.mark.parametrize("trace_format", ["helios", "pai"])
def test_a_field_longer_than_csv_reads_is_refused(tmp_path, trace_format) -> None:
    with pytest.raises(DocumentError, match=rf"{trace_format} trace: Error: field larger than field limit \(131072\)"):
        make(tmp_path, trace_format, "job_id,gpu_num\n" + "x" * 131_073 + ",1\n")


def test_no_profile_and_no_job_that_fits_are_errors(tmp_path) -> None:
    with pytest.raises(InvalidValueError, match="give at least one profile"):
        import_trace(tmp_path / "trace", "helios", {}, CLUSTER)
    with pytest.raises(InvalidValueError, match="fits on 8 GPUs"):
        make(tmp_path, "helios", "\n".join(HELIOS.splitlines()[:2]))
    with pytest.raises(DocumentError, match="there is no such file"):
        import_trace(tmp_path / "gone", "pai", {"net": PROFILE}, CLUSTER)


def test_profiles_of_two_devices_are_refused_as_a_simulation_of_their_jobs_would_be(tmp_path) -> None:
    (tmp_path / "trace").write_text(HELIOS)
    profiles = {"net": PROFILE, "other": replace(PROFILE, device_name="another GPU")}
    with pytest.raises(InvalidValueError, match="jobs must be of one kind of GPU"):
        import_trace(tmp_path / "trace", "helios", profiles, Cluster(16))
