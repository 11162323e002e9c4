"""Trains by one technique for some steps: ``python technique.py NAME PLAN FOLDER STEPS``.

Errors end it as they end the commands of deeppool: in one line, with exit code 1. As these do, it loads torch where an
error is caught: the process may run out of memory there.
"""

import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "execution")]

import deeppool as dp  # noqa: E402
from deeppool.cli.out_of_memory import OUT_OF_MEMORY, ran_out_of_memory  # noqa: E402
from deeppool.errors import DeeppoolError  # noqa: E402

SYNCS = {"eager-SGD": "EagerSGD", "Caramel": "TransferScheduler", "two waves": "WaveletDataParallel"}


def train(name: str, plan: Path, folder: Path, steps: int) -> None:
    from job import BATCH, job

    kept = {"checkpoints": folder / "kept", "checkpoint_every": 200}
    if name in SYNCS:
        dp.train(dp.load(plan), job(), steps=steps, gradient_sync=getattr(dp, SYNCS[name])(), **kept)
    elif name == "two machines":
        from machines import machines

        with machines(2, 1e9, 1.0) as launcher:
            dp.train(dp.load(plan), job(), steps=steps, launcher=launcher, **kept)
    elif name == "crossover":
        with dp.CrossoverScheduler([job(), job()], global_batch=BATCH, ranks=2, checkpoints=folder / "kept") as jobs:
            jobs.train(steps)
    elif name == "cluster":
        on_a_cluster(plan, job(), steps)
    else:
        rotate(job(), BATCH, steps)


def on_a_cluster(plan: Path, job: "dp.TrainingJob", steps: int) -> None:
    """Trains as a job of a Ray cluster on this machine, which is ended whatever happens."""
    try:
        ended = (cluster := dp.Coordinator.start(gpus=2)).wait(cluster.submit(dp.load(plan), job, steps=steps))
        if ended.error:
            raise DeeppoolError(ended.error)
    finally:
        subprocess.run([sys.executable, "-m", "deeppool.cli", "cluster", "stop"], capture_output=True, check=False)


def rotate(job: "dp.TrainingJob", batch: int, steps: int) -> None:
    """Trains partitions that rotate over the ranks, in processes of torchrun."""
    import torch.distributed as dist

    data = job.dataset()
    dist.init_process_group("gloo")
    with dp.WaveletModelParallel(job, global_batch=batch) as training:
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
        print("error:", OUT_OF_MEMORY, file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
