"""How far is a predicted transfer or all-reduce from the measured one? Prints the tables of the README."""

import argparse
import json
import os
import statistics
from dataclasses import replace
from pathlib import Path

import deeppool as dp
from deeppool.cluster.cluster import Cluster, find_cluster
from deeppool.cluster.measured_network import AllReduce, Curve, MeasuredNetwork, fit_line
from deeppool.collectives.layout import Layout
from deeppool.costs.communication import Network
from deeppool.processes.launcher import LocalLauncher
from deeppool.processes.rank_group import RankGroup, private_folder
from deeppool.profiling.network.measure import SIZES

HERE = Path(__file__).parent
BATCH = 12
SAMPLE_BYTES = (1024, 65536, 1048576)
RESHARDS = {
    2: [((0, 1), (0,)), ((0,), (0, 1))],
    3: [((0, 1, 2), (0,)), ((0, 1, 2), (0, 1)), ((0, 1), (2,))],
}


def errors(predicted: list[float], measured: list[float]) -> dict[str, float]:
    """Of a factor: 100 % is twice or half."""
    off = [max(p / m, m / p) - 1 for p, m in zip(predicted, measured, strict=True)]
    return {"median": statistics.median(off), "worst": max(off)}


def every_second(curve: Curve) -> Curve:
    """The curve of 4, 16, 64 … bytes, with a line of its own: what is fitted; the sizes between are held out."""
    kept = slice(None, None, 2)
    sizes, seconds = curve.sizes[kept], curve.seconds[kept]
    return Curve(sizes, seconds, curve.spread[kept], curve.runs[kept], fit_line(sizes, seconds))


def held_out(first: Cluster, second: Cluster) -> list[dict[str, object]]:
    """What the first measurement, of every second size, says of the sizes between; against both measurements."""
    preset = find_cluster("loopback", first.gpus)
    rows = []

    def row(name: str, some: Curve, other: Curve, link_time, preset_time):
        known, sizes, truth = every_second(some), some.sizes[1::2], some.seconds[1::2]
        predictions = {
            "curve": [known.at(size) for size in sizes],
            "line": [known.line.at(size) for size in sizes],
            "ring over the measured line": [link_time(size) for size in sizes],
            "loopback preset": [preset_time(size) for size in sizes],
            "the second measurement": list(other.seconds[1::2]),
        }
        found = {how: errors(times, list(truth)) for how, times in predictions.items()}
        rows.append({"pattern": name, "spread": statistics.median(some.spread), **found})

    one, two = first.measured, second.measured
    line = every_second(one.inside).line
    row("transfer", one.inside, two.inside, line.at, lambda s: preset.inside.latency + s / preset.inside.bandwidth)
    for some, other in zip(one.all_reduce, two.all_reduce, strict=True):
        g = some.gpus
        row(
            f"all-reduce of {g}",
            some.curve,
            other.curve,
            lambda s, g=g: 2 * (g - 1) * line.at(s / g),
            lambda s, g=g: Network(preset).all_reduce_time(g, s),
        )
    return rows


def unmeasured_group(cluster: Cluster) -> dict[str, object] | None:
    """The largest group as it is extrapolated from the others."""
    measured: MeasuredNetwork = cluster.measured
    if len(measured.all_reduce) < 2:
        return None
    last: AllReduce = measured.all_reduce[-1]
    fewer = replace(measured, all_reduce=measured.all_reduce[:-1])
    times = [fewer.all_reduce_time(last.gpus, size) for size in last.curve.sizes]
    return {"group": last.gpus, "from": fewer.largest_group, **errors(times, list(last.curve.seconds))}


def reshards(cluster: Cluster, rounds: int) -> list[dict[str, object]]:
    """Measured with the runtime's own exchange, predicted by the planner's prices."""
    ranks = cluster.gpus
    cases = [(*sets, BATCH, size) for sets in RESHARDS[ranks] for size in SAMPLE_BYTES]
    with private_folder() as folder, RankGroup(LocalLauncher("cpu", ranks)) as group:
        for rank in range(ranks):
            group.start("reshard_rank").send(
                "setup", rank=rank, ranks=ranks, cases=cases, rounds=rounds, rendezvous=str(folder / "rendezvous")
            )
        times = group.collect("done", 300, "while it moved samples")[0]["times"]
    rows = []
    for (source, destination, batch, size), taken in zip(cases, times, strict=True):
        layouts = Layout(tuple(source), batch), Layout(tuple(destination), batch)
        rows.append(
            {
                "from": source,
                "to": destination,
                "sample_bytes": size,
                "measured": statistics.median(taken),
                "quartiles": statistics.quantiles(taken, n=4)[::2],
                "predicted": Network(cluster).reshard_time(*layouts, size),
                "loopback preset": Network(find_cluster("loopback", ranks)).reshard_time(*layouts, size),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2, choices=sorted(RESHARDS))
    parser.add_argument("--seconds", type=float, default=40, help="of each of the two measurements")
    parser.add_argument("--rounds", type=int, default=40, help="of the reshards")
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    first, second = (
        dp.measure_network(arguments.ranks, backend="gloo", sizes=SIZES, seconds=arguments.seconds) for _ in range(2)
    )
    found = {
        "held_out": held_out(first, second),
        "unmeasured_group": unmeasured_group(first),
        "reshards": reshards(first, arguments.rounds),
    }
    print(first.measured.table(), "\n")
    for row in found["held_out"]:
        print(row["pattern"], f"spread ±{row['spread']:.0%}")
        for how, off in row.items():
            if isinstance(off, dict):
                print(f"    {how:28s} off by {off['median']:6.0%} in the median, {off['worst']:6.0%} at worst")
    print("\nlargest group, extrapolated:", found["unmeasured_group"])
    for row in found["reshards"]:
        low, measured, high, predicted, preset = (
            f"{1e3 * seconds:.3g}"
            for seconds in (
                row["quartiles"][0],
                row["measured"],
                row["quartiles"][1],
                row["predicted"],
                row["loopback preset"],
            )
        )
        print(
            f"{row['from']} -> {row['to']} {row['sample_bytes']:>8d} B a sample: measured {measured} ms "
            f"({low} … {high}), predicted {predicted}, preset {preset}"
        )
    if arguments.output:
        arguments.output.write_text(json.dumps(found, indent=1))
        dp.save(first, arguments.output.with_suffix(".cluster.json"))


if __name__ == "__main__":
    main()
