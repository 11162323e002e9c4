"""One rank of the benchmark of patterns: measures transfers and every all-reduce."""

import os
from dataclasses import asdict

import torch.distributed as dist

from deeppool.collectives.patterns import ALL_REDUCES
from deeppool.device.find import find_device
from deeppool.processes.managed_process import CommandChannel
from deeppool.profiling.network.patterns import PAIRS, Pattern, RankContext, measure_patterns


def patterns_of(ranks):
    """A transfer, an exchange and all-reduces; hierarchical where there are two nodes of two ranks."""
    members = tuple(range(ranks))
    names = [name for name in ALL_REDUCES if name != "hierarchical" or ranks == 4]
    return [
        *(Pattern(kind, (0, 1)) for kind in PAIRS),
        *(Pattern("all-reduce", group) for group in dict.fromkeys([(0, 1), members])),
        *(Pattern(name, members, per_node=2) for name in names),
    ]


def main():
    commands = CommandChannel()
    setup = commands.next()
    device = find_device("cpu")
    device.select(setup["index"])
    os.environ["GLOO_SOCKET_IFNAME"] = setup["interface"] or "lo"
    with device.unbound():
        dist.init_process_group("gloo", init_method=setup["rendezvous"], rank=setup["rank"], world_size=setup["ranks"])
    found = patterns_of(setup["ranks"])
    context = RankContext(setup["rank"], setup["ranks"], setup["ranks"])
    curves = []
    for patterns, sizes in ((found[: len(PAIRS)], "pair_sizes"), (found[len(PAIRS) :], "sizes")):
        curves += measure_patterns(
            [[pattern] for pattern in patterns],
            context,
            device,
            setup[sizes],
            setup["seconds"] * len(patterns) / len(found),
            lambda what, share: commands.answer("progress", what=what, share=share),
        )
    commands.answer("done", curves=[asdict(curve) for curve in curves])
    commands.next()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
