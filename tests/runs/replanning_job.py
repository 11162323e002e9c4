"""A training that changes its plan after two updates, by a script under torchrun: see test_torchrun.py."""

import json
import sys

import deeppool as dp
from deeppool.base import serialization
from deeppool.processes.torchrun.rendezvous import rendezvous
from examples import own_training
from tests.strategies import profile_from_times


def main() -> None:
    plan, kept = dp.load(sys.argv[1]), sys.argv[2]
    job = own_training.job()
    graph = job.capture().graph
    # A plan made as if nothing gained from a second rank, where the profile knows better.
    cautious = dp.plan(profile_from_times(graph, [lambda b: 1e-3] * len(graph.layers)), plan.cluster, plan.global_batch)
    profile = profile_from_times(graph, [lambda b: 1e-3 * b] * len(graph.layers))
    with rendezvous() as group:
        record = dp.train(
            cautious,
            job,
            steps=4,
            checkpoints=kept,
            replan_after=2,
            profile=profile,
            launcher=group.launcher(cautious.device, cautious.gpus),
            on_proposal=lambda found: True,
        )
        print(json.dumps(serialization.to_json(record)))


if __name__ == "__main__":
    main()
