"""How close do waves of model parallelism come to as many times the speed as there are ranks?

    python benchmarks/wavelet/main.py -o waves.json                    four machines at a limited rate; root, ip, tc
    python benchmarks/wavelet/main.py -o loopback.json --megabits 0    four processes over the loopback

Computing is slept, in place of a GPU for each rank; weights, activations and gradients are really sent. For each ratio
of computing to transfers, by turns: plain model parallelism, waves, GPipe and 1F1B of torch.distributed.pipelining with
the best number of micro-batches, and, as if the model fitted on one rank, DDP with its best bucket and on fewer ranks.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
# The ranks import the model and the program beside this script, and the machines are those of another benchmark.
PATHS = [str(HERE), *(str(HERE.parent / name) for name in ("crossover", "execution", ""))]
sys.path += PATHS
os.environ["PYTHONPATH"] = os.pathsep.join([*PATHS, os.environ.get("PYTHONPATH", "")])

from machines import machines  # noqa: E402
from measured_table import measured_table  # noqa: E402
from slept import WIDTH, job  # noqa: E402

import deeppool as dp  # noqa: E402
from deeppool.base import serialization  # noqa: E402
from deeppool.device.environment import made_now  # noqa: E402
from deeppool.execution.comparison.turns import Turns, joined_ranks  # noqa: E402
from deeppool.execution.data_parallel.compared_methods import data_parallel_settings, fewer_counts  # noqa: E402
from deeppool.interleaving.wavelet.step_time import (  # noqa: E402
    PartitionCosts,
    efficiency,
    vanilla_step_time,
    waves_step_time,
)
from deeppool.processes.launcher import Launcher  # noqa: E402
from deeppool.records.confidence_interval import format_with_interval  # noqa: E402
from deeppool.records.measured_ways import MeasuredWay, MeasuredWays  # noqa: E402
from deeppool.runs.technique_comparison.compare import micro_batches  # noqa: E402
from deeppool.runs.technique_comparison.names import (  # noqa: E402
    FEWER,
    GPIPE,
    NOTES,
    ONE_PARTITION,
    PIPELINE,
    PIPELINES,
    ROTATING,
    TECHNIQUES,
    TUNED_DDP,
)
from deeppool.training.training_job import save_job  # noqa: E402

RANKS = 4
RATIOS = (0.5, 1.0, 2.0, 5.0, 10.0)
WAYS = (ONE_PARTITION, ROTATING, GPIPE, PIPELINE, TUNED_DDP, FEWER)
BUCKETS = (1, 4, 8)
"""Of DDP in a backward."""
PROGRAM = "partitions_rank"


@contextlib.contextmanager
def ranks_of(seconds: float, launcher: Launcher | None, arguments: argparse.Namespace) -> Iterator[Turns]:
    made = job(seconds, arguments.megabytes)
    with joined_ranks(
        PROGRAM,
        RANKS,
        save=lambda folder: save_job(made, folder),
        launcher=launcher,
        batch=RANKS * arguments.samples,
    ) as turns:
        yield turns


def transfers(turns: Turns, arguments: argparse.Namespace) -> dict[str, float]:
    """Seconds of each transfer alone, on its slowest rank."""
    answers = turns.ask(
        "transfers",
        bytes=int(arguments.megabytes * 1e6 / RANKS),
        moved=arguments.samples * WIDTH * 4,
        times=arguments.rounds + 2,
    )
    return {what: max(answer[what] for answer in answers) for what in ("weights", "gradients", "moved")}


def of_step(costs: dict[str, float]) -> float:
    """Seconds of all transfers of a step of waves, one after the other."""
    return RANKS * (2 * costs["weights"] + costs["gradients"]) + 2 * (RANKS - 1) * costs["moved"]


def computing(answers: list[dict], kind: str) -> list[float]:
    """Seconds that each partition computed in the last round, in the median of the ranks."""
    spans = [span for answer in answers for span in answer["spans"] if span[0] == kind]
    return [statistics.median(end - start for _, p, _, start, end in spans if p == part) for part in range(RANKS)]


def medians(repetitions: list[list[float]]) -> list[float]:
    return [statistics.median(each) for each in zip(*repetitions, strict=True)]


def settings(way: str, arguments: argparse.Namespace) -> list[dict]:
    """What is tried of a way before it is measured."""
    batch = RANKS * arguments.samples
    if way in PIPELINES:
        return [{"micro_batches": parts} for parts in micro_batches(RANKS, batch)]
    tried = [arguments.megabytes * 1e6 / buckets for buckets in BUCKETS]
    return data_parallel_settings(fewer_counts(RANKS) if way == FEWER else [RANKS], tried)


def measure(seconds: float, launcher: Launcher | None, arguments: argparse.Namespace) -> tuple[MeasuredWays, float]:
    """All ways, and the speed-up of waves over one of them by formula, in times the ranks."""
    batch, made = RANKS * arguments.samples, {}
    with ranks_of(seconds / arguments.samples, launcher, arguments) as turns:
        for way in WAYS:
            made[way] = turns.fastest(way, [{"warm_up": 1, **each} for each in settings(way, arguments)], 2)
            turns.prepare(way, **made[way])
        links, forwards, backwards = [], [], []
        for _ in turns.repeat(WAYS, arguments.rounds, arguments.repetitions):
            links.append(transfers(turns, arguments))
            answers = turns.rounds[ROTATING][-1].answers
            forwards.append(computing(answers, "forward"))
            backwards.append(computing(answers, "backward"))
    link = {what: statistics.median(each[what] for each in links) for what in links[0]}
    costs = [
        PartitionCosts(
            forward, backward, link["moved"] if part < RANKS - 1 else 0.0, link["weights"], link["gradients"]
        )
        for part, (forward, backward) in enumerate(zip(medians(forwards), medians(backwards), strict=True))
    ]
    predicted = {ONE_PARTITION: vanilla_step_time(costs), ROTATING: waves_step_time(costs)}
    ratio = sum(each.forward + each.backward for each in costs) / of_step(link)
    ways = [
        MeasuredWay(
            way,
            turns.seconds(way),
            batch // RANKS if way == ONE_PARTITION else batch,
            note=NOTES.get(way, "").format(ranks=RANKS, **made[way]),
            technique=TECHNIQUES.get(way, ""),
            predicted=predicted.get(way),
        )
        for way in WAYS
    ]
    measured = MeasuredWays(
        model=f"computing / transfers {ratio:.2f}",
        global_batch=batch,
        ranks=RANKS,
        device_name=turns.device_name,
        ways=tuple(ways),
        repetitions=arguments.repetitions,
        late=0.0,
        **made_now(),
    )
    return measured, efficiency(costs)


def table(found: list[tuple[MeasuredWays, float]]) -> str:
    """All ways, and the speed-up of waves over one of them beside the formula, in times the ranks."""
    lines = [measured_table("", [(record.model, record) for record, _ in found])]
    for record, of in found:
        shares = [gain and gain / RANKS for gain in record.gain(ROTATING, ONE_PARTITION)]
        lines.append(f"{record.model}: {format_with_interval(*shares)} of N times one wave, by formula {of:.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file of all measurements")
    parser.add_argument("--megabytes", type=float, default=2.0, help="of weights, in all partitions")
    parser.add_argument("--megabits", type=float, default=200.0, help="per second and direction; 0: over the loopback")
    parser.add_argument("--samples", type=int, default=16, help="of a rank in a step of waves")
    parser.add_argument("--ratios", type=float, nargs="+", default=RATIOS, help="computing of a batch / transfers")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2, help="of each way in a repetition")
    arguments = parser.parse_args()
    serialization.check_writable(arguments.output)
    print(dp.environment(), file=sys.stderr)
    limited = machines(RANKS, arguments.megabits * 1e6, os.cpu_count() or 1) if arguments.megabits else None
    found = []
    with limited or contextlib.nullcontext() as launcher:
        with ranks_of(0.0, launcher, arguments) as turns:
            seconds = of_step(transfers(turns, arguments))
        for ratio in arguments.ratios:
            found.append(measure(ratio * seconds, launcher, arguments))
            print(table(found[-1:]), file=sys.stderr)
            arguments.output.write_text(json.dumps(found, indent=1, default=serialization.to_json))
    print(table(found))


if __name__ == "__main__":
    main()
