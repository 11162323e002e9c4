"""Trains by one technique for some steps: ``python technique.py NAME PLAN FOLDER STEPS``.

Errors end it as they end the commands of deeppool: in one line, with exit code 1.
"""

import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "execution")]

import torch.distributed as dist  # noqa: E402
from job import BATCH, job  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.cli.out_of_memory import ran_out_of_memory  # noqa: E402
from deeppool.errors import DeeppoolError  # noqa: E402

SYNCS = {"eager-SGD": dp.EagerSGD, "Caramel": dp.TransferScheduler, "two waves": dp.WaveletDataParallel}


def train(name: str, plan: Path, folder: Path, steps: int) -> None:
    kept = {"checkpoints": folder / "kept", "checkpoint_every": 200}
    if name in SYNCS:
        dp.train(dp.load(plan), job(), steps=steps, gradient_sync=SYNCS[name](), **kept)
    elif name == "two machines":
        from machines import machines

        with machines(2, 1e9, 1.0) as launcher:
            dp.train(dp.load(plan), job(), steps=steps, launcher=launcher, **kept)
    elif name == "crossover":
        with dp.CrossoverScheduler([job(), job()], global_batch=BATCH, ranks=2, checkpoints=folder / "kept") as jobs:
            jobs.train(steps)
    elif name == "cluster":
        on_a_cluster(plan, steps)
    else:
        rotate(steps)


def on_a_cluster(plan: Path, steps: int) -> None:
    """Trains as a job of a Ray cluster on this machine, which is ended whatever happens."""
    try:
        ended = (cluster := dp.Coordinator.start(gpus=2)).wait(cluster.submit(dp.load(plan), job(), steps=steps))
        if ended.error:
            raise DeeppoolError(ended.error)
    finally:
        subprocess.run([sys.executable, "-m", "deeppool.cli", "cluster", "stop"], capture_output=True, check=False)


def rotate(steps: int) -> None:
    """Trains partitions that rotate over the ranks, in processes of torchrun."""
    own = job()
    data = own.dataset()
    dist.init_process_group("gloo")
    with dp.WaveletModelParallel(own, global_batch=BATCH) as training:
        for _ in range(steps):
            training.step(lambda samples: data[samples.start : samples.stop])
    dist.destroy_process_group()


def main() -> None:
    name, plan, folder, steps = sys.argv[1:]
    try:
        train(name, Path(plan), Path(folder), int(steps))
    except (DeeppoolError, KeyboardInterrupt) as error:
        print(f"error: {error or 'interrupted'}", file=sys.stderr)
        sys.exit(1)
    except Exception as error:
        # Of this process, not of a rank.
        if not ran_out_of_memory(error):
            raise
        print("error: this process ran out of memory", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
