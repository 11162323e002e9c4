"""How fast does a plan run beside PyTorch's DistributedDataParallel, and how long were both predicted to take?

    python benchmarks/execution/main.py loopback -o loopback.json    two ranks of this machine, a core each
    python benchmarks/execution/main.py slow -o slow.json            machines at 1 Gbit/s; needs root, ip and tc
    python benchmarks/execution/main.py threads -o threads.json      no ranks: one process on all cores

Layers, the optimizer's update and the network are measured on the same ranks first, and the plan is the fastest one for
that. All ways train the same batches in the same processes, interleaved. DDP is measured on all ranks and on fewer, by
powers of two: the baseline is the fastest, as a user would pick it.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from machines import SUBNET, launcher, machines
from rank import sgd

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from measured_table import measured_table  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.cluster.cluster import Cluster, find_cluster  # noqa: E402
from deeppool.device.environment import made_now  # noqa: E402
from deeppool.execution.data_parallel.compared_methods import fewer_counts  # noqa: E402
from deeppool.execution.measurements import iteration_spans  # noqa: E402
from deeppool.graph.models.workloads import load_model  # noqa: E402
from deeppool.planning.plan import Plan  # noqa: E402
from deeppool.processes.launcher import Launcher, LocalLauncher  # noqa: E402
from deeppool.processes.rank_group import RankGroup, private_folder  # noqa: E402
from deeppool.profiling.table import Profile  # noqa: E402
from deeppool.records.measured_ways import MeasuredWay, MeasuredWays  # noqa: E402
from deeppool.training.synthetic_task import SyntheticTask  # noqa: E402

LOOPBACK = {"vgg16": ((3, 64, 64), 16), "resnet50": ((3, 64, 64), 16), "resnet18": ((3, 64, 64), 16)}
SLOW = {"vgg16": ((3, 32, 32), 64), "resnet50": ((3, 32, 32), 64)}
PORT = 29872
"""Where the ranks meet that measure the network."""
NETWORK_SECONDS = 20.0


def compare(plan: Plan, launcher: Launcher, rounds: int, iterations: int) -> dict[str, object]:
    """All ways, interleaved, on the ranks of a launcher."""
    fewer = fewer_counts(plan.gpus)
    ways = ["ddp", *(f"ddp on {count}" for count in fewer), "plan", "unmonitored"]
    with private_folder() as folder, RankGroup(launcher) as group:
        serialization.write(plan, folder / "plan.json")
        launcher.distribute_files(folder)
        for rank in range(plan.gpus):
            group.start("rank").send(
                "setup", rank=rank, ranks=plan.gpus, fewer=fewer, **asdict(launcher.worker_spec(rank))
            )
        group.collect("ready", 300, "while it started")
        group.send("compare", rounds=1, iterations=2, ways=ways)
        group.collect("done", 300, "while it warmed up")
        group.send("compare", rounds=rounds, iterations=iterations, ways=ways)
        answers = group.collect("done", 600, "while it trained")
    return row(plan, answers, rounds)


def row(plan: Plan, answers: list[dict], rounds: int) -> dict[str, object]:
    """All ways beside what was predicted, iterations as long as their slowest rank, updates included; and idle time."""
    seconds = {
        way: tuple(max(times) for times in zip(*(answer[way]["seconds"] for answer in answers), strict=True))
        for way in answers[0]
        if way != "event"
    }
    unmonitored = seconds.pop("unmonitored")
    predicted = {f"ddp on {one.gpus}": one.seconds for one in plan.comparison.data_parallel}
    predicted |= {"ddp": predicted[f"ddp on {plan.gpus}"], "plan": plan.iteration_time}
    techniques = {"plan": "burst parallelism"}
    spans = [{"spans": answer["plan"]["spans"]} for answer in answers]
    idle = []
    for iteration, duration in enumerate(seconds["plan"]):
        found = iteration_spans(spans, iteration)
        started = min(start for *_, start, _ in found)
        idle.append(1 - sum(end - max(start, started) for *_, start, end in found) / (plan.gpus * duration))
    return {
        "measured": MeasuredWays(
            model=plan.model,
            global_batch=plan.global_batch,
            ranks=plan.gpus,
            device_name=platform.processor() or platform.machine(),
            ways=tuple(
                MeasuredWay(way, times, plan.global_batch, technique=techniques.get(way, ""), predicted=predicted[way])
                for way, times in seconds.items()
            ),
            repetitions=rounds,
            late=0.0,
            **made_now(),
        ),
        "input_shape": plan.input_shape,
        "gpus_of_layers": [layer.gpu_count for layer in plan.layers],
        "update_predicted": plan.update_time,
        "sync_computing": plan.sync_computing,
        "idle": quartiles(idle),
        "idle_predicted": 1 - plan.gpu_seconds / (plan.gpus * plan.iteration_time),
        "unmonitored": quartiles(unmonitored),
        "last_losses": {way: sum(answer[way]["losses"][-1] for answer in answers) for way in seconds},
    }


def quartiles(values: Sequence[float]) -> list[float]:
    return statistics.quantiles(values, n=4)


def loopback(models: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Two ranks of this machine, each profiled while the other one trains."""
    cluster = dp.measure_network(2, backend="gloo", seconds=NETWORK_SECONDS)
    for model in models:
        shape, batch = LOOPBACK[model]
        profile = dp.profile(model, shape, device="cpu", batch_sizes=[batch // 2, batch], ranks=2)
        launcher = LocalLauncher("cpu", 2)
        yield compare(planned(profile, cluster, batch), launcher, arguments.rounds, arguments.iterations)


def slow(models: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Machines of their own: layers at one machine's speed, transfers over its link."""
    count = arguments.machines
    with (
        machines(count, 1e9 * arguments.gigabits, arguments.cores) as launcher,
        private_folder() as folder,
    ):
        cluster = measured_cluster(count, folder)
        for model in models:
            shape, batch = SLOW[model]
            profile = measured_profile(model, shape, batch, count, folder)
            yield compare(planned(profile, cluster, batch), launcher, arguments.rounds, arguments.iterations)


def threads(models: list[str], arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Plain PyTorch, whose operators use all cores of this machine, on the batches of ``loopback``."""
    for model in models:
        shape, batch = LOOPBACK[model]
        network = load_model(model, 0).train()
        task = SyntheticTask(dp.capture(model, shape), batch, 0)
        optimizer = sgd(network.parameters())
        seconds = []
        for iteration in range(2 + arguments.rounds * arguments.iterations):
            inputs, targets = task.shard(iteration, 0, batch)
            started = time.perf_counter()
            torch.nn.functional.cross_entropy(network(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            seconds.append(time.perf_counter() - started)
        yield {"model": model, "global_batch": batch, "threads": torch.get_num_threads(), "seconds": seconds[2:]}


def threads_table(rows: list[dict]) -> str:
    lines = ["| model | batch | threads | ms |", "|---" * 4 + "|"]
    for found in rows:
        low, median, high = (1e3 * value for value in quartiles(found["seconds"]))
        cells = (
            *(str(found[key]) for key in ("model", "global_batch", "threads")),
            f"{median:.0f} ({low:.0f} … {high:.0f})",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def planned(profile: Profile, cluster: Cluster, batch: int) -> Plan:
    plan = dp.plan(profile, cluster, batch, gpu_counts="all")
    print(profile.explain(), cluster.measured.table(), plan.explain(), sep="\n\n", file=sys.stderr)
    return plan


def measured_profile(model: str, shape: tuple[int, ...], batch: int, count: int, folder: Path):
    """By one machine, while the others compute too, as they do in a run."""
    file = folder / "profile.json"
    sizes = ",".join(str(-(-batch // ranks)) for ranks in range(count, 0, -1))
    command = [
        *(sys.executable, "-m", "deeppool.cli", "profile", model, "--device", "cpu"),
        *("--input-shape", ",".join(map(str, shape)), "--batch-sizes", sizes, "-o", str(file)),
    ]
    with busy_machines(count):
        subprocess.run([*launcher(0), *command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return dp.load(file)


@contextlib.contextmanager
def busy_machines(count: int) -> Iterator[None]:
    """All machines but the first go through memory as training does."""
    work = "import torch; torch.set_num_threads(1)\nx = torch.randn(64, 64, 32, 32); w = torch.randn(64, 64, 3, 3)\n"
    work += "while True: torch.conv2d(x, w, padding=1)"
    others = [subprocess.Popen([*launcher(m), sys.executable, "-c", work]) for m in range(1, count)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def measured_cluster(count: int, folder: Path) -> Cluster:
    """By all machines together, as torchrun would start them."""
    file = folder / "cluster.json"
    command = [sys.executable, "-m", "deeppool.cli", "network", "--seconds", f"{NETWORK_SECONDS:g}", "-o", str(file)]
    started = [
        subprocess.Popen(
            [*launcher(rank), *command],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": f"{SUBNET}.1",
                "MASTER_PORT": str(PORT),
                "GLOO_SOCKET_IFNAME": "eth0",
            },
        )
        for rank in range(count)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("the network could not be measured")
    return find_cluster(str(file), count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("loopback", "slow", "threads"))
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--models", nargs="+", help="some of those with a size here; default: all")
    parser.add_argument("--gigabits", type=float, default=1.0, help="per second, between the slow machines")
    parser.add_argument("--machines", type=int, default=4, help="slow ones")
    parser.add_argument("--cores", type=float, default=0.4, help="of this machine that each slow one has")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5, help="in a row by each way")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # The ranks import the script beside this one.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(dp.environment(), file=sys.stderr)
    ways = {"loopback": (loopback, LOOPBACK), "slow": (slow, SLOW), "threads": (threads, LOOPBACK)}
    run, sizes = ways[arguments.network]
    models = arguments.models or list(sizes)
    rows = []
    for found in run(models, arguments):
        rows.append(found)
        serialization.write_text(json.dumps(rows, indent=1, default=serialization.to_json), arguments.output)
    print(threads_table(rows) if arguments.network == "threads" else table(rows))


def table(rows: list[dict]) -> str:
    """All ways of each model; and of the plan its predicted gain, what the spans cost, and idle time."""
    lines = [measured_table("model", [(found["measured"].model, found["measured"]) for found in rows])]
    for found in rows:
        plan, controls = found["measured"].way("plan"), found["measured"].controls("")
        cost = plan.median / found["unmonitored"][1] - 1
        lines.append(
            f"{found['measured'].model}: predicted gain {min(way.predicted for way in controls) / plan.predicted:.2f}, "
            f"cost of the spans {cost:+.1%}, idle {found['idle'][1]:.0%} ({found['idle_predicted']:.0%} predicted)"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
