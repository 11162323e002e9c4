"""How fast does a plan run beside PyTorch's DistributedDataParallel, and how long were both predicted to take?

    python benchmarks/execution/main.py loopback -o loopback.json    two ranks of this machine, a core each
    python benchmarks/execution/main.py slow -o slow.json            machines at 1 Gbit/s; needs root, ip and tc
    python benchmarks/execution/main.py threads -o threads.json      no ranks: one process on all cores

Layers, the optimizer's update and the network are measured on the same ranks first, and the plan is the fastest one for
that. All ways train the same batches in the same processes, interleaved (``dp.compare_techniques``): the plan, DDP, DDP
with its best bucket, and on as many fewer ranks as it is fastest on.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from machines import SUBNET, launcher, machines

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from measured_table import measured_table  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.cluster.cluster import Cluster, find_cluster  # noqa: E402
from deeppool.collectives.transfer_methods import DDP, FEWER, TUNED_DDP  # noqa: E402
from deeppool.evaluation.experiments.classification_job import classification_job  # noqa: E402
from deeppool.graph.models.workloads import load_model  # noqa: E402
from deeppool.planning.plan import Plan  # noqa: E402
from deeppool.processes.launcher import Launcher, LocalLauncher  # noqa: E402
from deeppool.processes.rank_group import private_folder  # noqa: E402
from deeppool.profiling.table import Profile  # noqa: E402
from deeppool.records.measured_ways import MeasuredWays  # noqa: E402
from deeppool.runs.technique_comparison.names import BURST  # noqa: E402
from deeppool.training.synthetic_task import SyntheticTask  # noqa: E402

LOOPBACK = {"vgg16": ((3, 64, 64), 16), "resnet50": ((3, 64, 64), 16), "resnet18": ((3, 64, 64), 16)}
SLOW = {"vgg16": ((3, 32, 32), 64), "resnet50": ((3, 32, 32), 64)}
PORT = 29872
"""Where the ranks meet that measure the network."""
NETWORK_SECONDS = 20.0


def compare(plan: Plan, launcher: Launcher, rounds: int, iterations: int) -> MeasuredWays:
    """The plan and its controls, by turns on the ranks of a launcher."""
    found = dp.compare_techniques(
        classification_job(plan.model, plan.input_shape),
        global_batch=plan.global_batch,
        ranks=plan.gpus,
        ways=[DDP, TUNED_DDP, FEWER, BURST],
        plan=plan,
        repetitions=rounds,
        rounds=iterations,
        launcher=launcher,
    )
    print(found, file=sys.stderr)
    return found


def loopback(models: list[str], arguments: argparse.Namespace) -> Iterator[MeasuredWays]:
    """Two ranks of this machine, each profiled while the other one trains."""
    cluster = dp.measure_network(2, backend="gloo", seconds=NETWORK_SECONDS)
    for model in models:
        shape, batch = LOOPBACK[model]
        profile = dp.profile(model, shape, device="cpu", batch_sizes=[batch // 2, batch], ranks=2)
        launcher = LocalLauncher("cpu", 2)
        yield compare(planned(profile, cluster, batch), launcher, arguments.rounds, arguments.iterations)


def slow(models: list[str], arguments: argparse.Namespace) -> Iterator[MeasuredWays]:
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
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
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
        low, median, high = (1e3 * value for value in statistics.quantiles(found["seconds"], n=4))
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
    print(dp.environment(), file=sys.stderr)
    ways = {"loopback": (loopback, LOOPBACK), "slow": (slow, SLOW), "threads": (threads, LOOPBACK)}
    run, sizes = ways[arguments.network]
    models = arguments.models or list(sizes)
    rows = []
    for found in run(models, arguments):
        rows.append(found)
        serialization.write_text(json.dumps(rows, indent=1, default=serialization.to_json), arguments.output)
    if arguments.network == "threads":
        print(threads_table(rows))
    else:
        print(measured_table("model, batch", [(f"{row.model}, {row.global_batch}", row) for row in rows]))


if __name__ == "__main__":
    main()
