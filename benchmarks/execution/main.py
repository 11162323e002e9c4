"""How fast does a plan run beside PyTorch's DistributedDataParallel, and how long was it predicted to take?

    python benchmarks/execution/main.py loopback -o loopback.json    two ranks, a core each, plain data parallelism
    python benchmarks/execution/main.py slow -o slow.json            four machines at 1 Gbit/s; needs root, ip and tc

Both ways train the same batches in the same processes, interleaved.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from machines import PORT, SUBNET, launcher, machines

import deeppool as dp
from deeppool.base import serialization
from deeppool.cluster.cluster import Cluster, find_cluster
from deeppool.execution.measurements import iteration_spans
from deeppool.planning.evaluate.data_parallel import data_parallel_plan
from deeppool.planning.plan import Plan
from deeppool.processes.launcher import Launcher, LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder

HERE = Path(__file__).parent
LOOPBACK = (("vgg16", (3, 64, 64), 16), ("resnet50", (3, 64, 64), 16))
SLOW = ("vgg16", (3, 32, 32), 64)
RANKS, BITS_PER_SECOND, CORES = 4, 1e9, 0.5


def compare(plan: Plan, launcher: Launcher, rounds: int, iterations: int) -> dict[str, object]:
    """Both ways, interleaved, on the ranks of a launcher."""
    with private_folder() as folder, RankGroup(launcher) as group:
        serialization.write(plan, folder / "plan.json")
        launcher.distribute_files(folder)
        for rank in range(plan.gpus):
            group.start("rank").send("setup", rank=rank, ranks=plan.gpus, **asdict(launcher.worker_spec(rank)))
        group.collect("ready", 300, "while it started")
        group.send("compare", rounds=1, iterations=2)
        group.collect("done", 300, "while it warmed up")
        group.send("compare", rounds=rounds, iterations=iterations)
        answers = group.collect("done", 600, "while it trained")
    return row(plan, answers)


def row(plan: Plan, answers: list[dict]) -> dict[str, object]:
    """Medians over iterations, each as long as its slowest rank."""
    seconds = {
        way: [max(times) for times in zip(*(answer[way]["seconds"] for answer in answers), strict=True)]
        for way in answers[0]
        if way != "event"
    }
    losses = {way: sum(answer[way]["losses"][-1] for answer in answers) for way in seconds}
    spans = [{"spans": answer["plan"]["spans"]} for answer in answers]
    passes, idle = [], []
    for iteration in range(len(seconds["plan"])):
        found = iteration_spans(spans, iteration)
        started = min(start for *_, start, _ in found)
        ended = max(end for _, kind, _, _, _, end in found if kind != "update")
        passes.append(ended - started)
        busy = sum(end - max(start, started) for _, kind, *_, start, end in found if kind != "update")
        idle.append(1 - busy / (plan.gpus * (ended - started)))
    return {
        "model": plan.model,
        "input_shape": plan.input_shape,
        "global_batch": plan.global_batch,
        "ranks": plan.gpus,
        "gpus_of_layers": [layer.gpu_count for layer in plan.layers],
        "ddp": quartiles(seconds["ddp"]),
        "plan": quartiles(seconds["plan"]),
        "passes": quartiles(passes),
        "predicted": plan.iteration_time,
        "data_parallel_predicted": plan.data_parallel_iteration_time,
        "idle": quartiles(idle),
        "idle_predicted": 1 - plan.gpu_seconds / (plan.gpus * plan.iteration_time),
        "unmonitored": quartiles(seconds["unmonitored"]),
        "last_losses": losses,
    }


def quartiles(values: list[float]) -> list[float]:
    return statistics.quantiles(values, n=4)


def loopback(rounds: int, iterations: int) -> list[dict[str, object]]:
    """Plain data parallelism, all-reduces beside the backward in both."""
    rows = []
    for model, shape, batch in LOOPBACK:
        profile = dp.profile(model, shape, device="cpu", batch_sizes=[batch // 2, batch])
        plan = data_parallel_plan(profile, find_cluster("loopback", 2), batch)
        rows.append(compare(plan, LocalLauncher("cpu", 2), rounds, iterations))
        print(json.dumps(rows[-1]), file=sys.stderr)
    return rows


def slow(rounds: int, iterations: int) -> list[dict[str, object]]:
    """A plan of what was measured on the machines: layers at one machine's speed, transfers over its link."""
    model, shape, batch = SLOW
    with machines(RANKS, BITS_PER_SECOND, CORES) as launcher, private_folder() as folder:
        profile = measured_profile(model, shape, batch, folder)
        cluster = measured_cluster(folder)
        plan = dp.plan(profile, cluster, batch, gpu_counts="all")
        print(cluster.measured.table(), plan, plan.explain(), sep="\n", file=sys.stderr)
        return [compare(plan, launcher, rounds, iterations)]


def measured_profile(model: str, shape: tuple[int, ...], batch: int, folder: Path):
    """By one machine, while the others compute too, as they do in a run."""
    file = folder / "profile.json"
    sizes = ",".join(str(-(-batch // count)) for count in range(RANKS, 0, -1))
    command = [
        *(sys.executable, "-m", "deeppool.cli", "profile", model, "--device", "cpu"),
        *("--input-shape", ",".join(map(str, shape)), "--batch-sizes", sizes, "-o", str(file)),
    ]
    with busy_machines():
        subprocess.run([*launcher(0), *command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return dp.load(file)


@contextlib.contextmanager
def busy_machines() -> Iterator[None]:
    """All machines but the first go through memory as training does."""
    work = "import torch; torch.set_num_threads(1)\nx = torch.randn(64, 64, 32, 32); w = torch.randn(64, 64, 3, 3)\n"
    work += "while True: torch.conv2d(x, w, padding=1)"
    others = [subprocess.Popen([*launcher(m), sys.executable, "-c", work]) for m in range(1, RANKS)]
    try:
        yield
    finally:
        for process in others:
            process.kill()
            process.wait()


def measured_cluster(folder: Path) -> Cluster:
    """By all machines together, as torchrun would start them."""
    file = folder / "cluster.json"
    command = [sys.executable, "-m", "deeppool.cli", "network", "--seconds", "20", "-o", str(file)]
    started = [
        subprocess.Popen(
            [*launcher(rank), *command],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
                "MASTER_ADDR": f"{SUBNET}.1",
                "MASTER_PORT": str(PORT + 1),
                "GLOO_SOCKET_IFNAME": "eth0",
            },
        )
        for rank in range(RANKS)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit("the network could not be measured")
    return find_cluster(str(file), RANKS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("loopback", "slow"))
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for the table")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=5, help="in a row by each way")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    # The ranks import the script beside this one.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print(dp.environment(), file=sys.stderr)
    rows = {"loopback": loopback, "slow": slow}[arguments.network](arguments.rounds, arguments.iterations)
    serialization.write_text(json.dumps(rows, indent=1), arguments.output)
    print(table(rows))


def table(rows: list[dict]) -> str:
    """Medians (quartiles) in milliseconds."""
    columns = (
        *("model", "batch on ranks", "DDP, ms", "plan, ms", "DDP / plan", "cost of the spans"),
        *("passes, ms", "predicted", "idle", "predicted"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for found in rows:
        ddp, plan, passes = ([1e3 * value for value in found[key]] for key in ("ddp", "plan", "passes"))
        cells = (
            found["model"],
            f"{found['global_batch']} on {found['ranks']}",
            *(f"{median:.0f} ({low:.0f} … {high:.0f})" for low, median, high in (ddp, plan)),
            f"{ddp[1] / plan[1]:.2f}",
            f"{100 * (found['plan'][1] / found['unmonitored'][1] - 1):+.1f} %",
            f"{passes[1]:.0f}",
            f"{1e3 * found['predicted']:.0f}",
            f"{100 * found['idle'][1]:.0f} %",
            f"{100 * found['idle_predicted']:.0f} %",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
