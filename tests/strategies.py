"""Hypothesis strategies: layer graphs, profiles and clusters that plans are made of."""

from dataclasses import replace

from hypothesis import strategies as st

from deeppool.cluster.cluster import Cluster, Link
from deeppool.cluster.measured_network import AllReduce, MeasuredNetwork, curve_through
from deeppool.collectives.buckets import DEFAULT_BUCKETS, SEARCHED_BUCKETS, Buckets
from deeppool.graph.layer import Layer, LayerGraph
from deeppool.profiling.table import Measurement, Profile

ALONE_BYTES = int(DEFAULT_BUCKETS.largest_joined)
"""A gradient so large shares no bucket in the buckets of costs that say nothing else."""
BUCKETS = st.one_of(
    st.sampled_from(SEARCHED_BUCKETS),
    st.builds(Buckets, st.sampled_from([2**20, 5 * 2**20, 30 * 2**20]), size=st.sampled_from([2**20, 11 * 2**20])),
)
"""Gradients of contested problems share all-reduces in some of these and not in others."""
BATCH_SIZES = (1, 2, 4, 8, 16)
DATA = -1
"""What the first layers read."""

Predecessors = list[tuple[int, ...]]
"""Per layer the layers that it reads; DATA where it reads none."""


@st.composite
def series_parallel_graphs(draw, max_layers=6):
    """Chains, blocks of two to four branches (one of them may be a direct edge), blocks inside branches."""
    predecessors: Predecessors = []

    def add(*sources):
        predecessors.append(sources)
        return len(predecessors) - 1

    def series(fork, size):
        while size:
            # A block takes a branch, a direct edge and a join at least; data has no direct edge to a join.
            smallest = 2 if fork != DATA else 3
            taken = draw(st.integers(smallest, size)) if size >= smallest and draw(st.booleans()) else 1
            fork = block(fork, taken) if taken > 1 else add(fork)
            size -= taken
        return fork

    def block(fork, size):
        inner = size - 1
        direct = fork != DATA and (inner == 1 or draw(st.booleans()))
        branches = draw(st.integers(1 if direct else 2, min(inner, 4 - direct)))
        ends = [series(fork, part) for part in draw(_parts(inner, branches))]
        return add(*ends, *[fork] * direct)

    series(DATA, draw(st.integers(1, max_layers)))
    return draw(_layer_graphs(predecessors))


CURVE_SIZES = (64, 2**20, 2**28)


def curve(seconds, sizes=CURVE_SIZES):
    """A curve whose runs all took the same time."""
    return curve_through(sizes, [[time, time] for time in seconds])


def measured_network(all_reduces, sizes=CURVE_SIZES):
    """A network of one node, by group size the seconds of all-reduces at each size."""
    groups = tuple(AllReduce(gpus, curve(seconds, sizes)) for gpus, seconds in all_reduces.items())
    ranks = groups[-1].gpus
    return MeasuredNetwork("gloo", "made by hand", ranks, ranks, groups[0].curve, None, groups, "", "2026-01-01", {})


def waiting(made, transfer=0.75, all_reduce=0.5):
    """The plan on a network between cores, which wait for the rest of a transfer."""
    network = measured_network({2: (1e-3, 2e-3, 3e-3)})
    inside = replace(network.inside, computing=(transfer,) * 3)
    group = replace(network.all_reduce[0], curve=replace(network.inside, computing=(all_reduce,) * 3))
    return replace(made, cluster=replace(made.cluster, measured=replace(network, inside=inside, all_reduce=(group,))))


@st.composite
def measured_networks(draw, largest=12):
    """All-reduces of some groups, in any order of speed."""
    groups = sorted({2, *draw(st.sets(st.integers(3, largest), max_size=4))})
    times = st.lists(st.floats(1e-6, 1), min_size=len(CURVE_SIZES), max_size=len(CURVE_SIZES))
    return measured_network({gpus: draw(times) for gpus in groups})


@st.composite
def chain_graphs(draw, max_layers=8):
    """Layers one after another."""
    size = draw(st.integers(1, max_layers))
    return draw(_layer_graphs([(DATA,), *((index,) for index in range(size - 1))]))


@st.composite
def tangled_graphs(draw, max_layers=6):
    """Any graph with one last layer; DenseNet's, in which each layer reads all before it, is the densest."""
    size = draw(st.integers(1, max_layers))
    predecessors: Predecessors = [(DATA,)]
    for index in range(1, size):
        predecessors.append(tuple(draw(st.sets(st.integers(0, index - 1), min_size=1, max_size=index))))
    read = {source for sources in predecessors for source in sources}
    loose = [index for index in range(size - 1) if index not in read]
    predecessors[-1] = tuple(sorted({*predecessors[-1], *loose}))
    return draw(_layer_graphs(predecessors))


@st.composite
def profiles(draw, graphs=None):
    """Layer times of a random graph: a part that no smaller batch makes shorter, and a part per sample."""
    graph = draw(graphs if graphs is not None else series_parallel_graphs())
    measurements = []
    for layer in graph.layers:
        per_sample = draw(st.sampled_from([1e-7, 1e-5, 1e-4, 1e-3, 1e-2])) * draw(st.floats(0.5, 5))
        # 0: splits for free, as a big convolution; 16 samples' worth: a tiny layer that gains nothing.
        fixed = per_sample * draw(st.sampled_from([0.0, 0.1, 1.0, 4.0, 16.0]))
        backward = draw(st.sampled_from([0.0, 1.0, 2.0]))
        forward = tuple(fixed + per_sample * batch for batch in BATCH_SIZES)
        measurements.append(
            Measurement(layer.signature, forward, tuple(backward * time for time in forward), (0.0,) * len(BATCH_SIZES))
        )
    return make_profile(graph, measurements)


@st.composite
def repeating_profiles(draw, graphs=None):
    """Profiles in which some layers repeat others, as the blocks of a transformer do: equal signatures, equal times."""
    profile = draw(profiles(graphs))
    signatures = [layer.signature for layer in profile.graph.layers]
    picked = [draw(st.sampled_from(signatures)) for _ in signatures]
    layers = tuple(
        replace(layer, signature=signature) for layer, signature in zip(profile.graph.layers, picked, strict=True)
    )
    measurements = [x for x in profile.measurements if x.signature in picked]
    return make_profile(replace(profile.graph, layers=layers), measurements)


def links():
    """From a slow Ethernet to NVSwitch and beyond; some without latency."""
    return st.builds(
        Link,
        bandwidth=st.sampled_from([1e8, 1e9, 1e10, 3e11]),
        latency=st.sampled_from([0.0, 1e-6, 1e-4, 3e-4]),
        source=st.just("drawn"),
    )


def clusters(gpus=(1, 2, 3, 4, 6, 8)):
    """Small clusters; some have several nodes."""
    return st.builds(
        Cluster,
        gpus=st.sampled_from(gpus),
        name=st.just("drawn"),
        gpus_per_node=st.sampled_from([1, 2, 4, 8]),
        inside=links(),
        between=links(),
    )


@st.composite
def problems(draw, graphs=None, gpus=(1, 2, 3, 4, 6, 8), made_of=profiles):
    """(profile, cluster, global batch): what a plan is asked for. Some batches do not divide evenly."""
    cluster = draw(clusters(gpus))
    return draw(made_of(graphs)), cluster, draw(st.integers(max(gpus), 2 * BATCH_SIZES[-1]))


@st.composite
def contested_problems(draw, graphs=None, gpus=(2, 4)):
    """Problems in which layers, transfers and all-reduces take about as long as one another; times in steps of 1 ms.

    Gradients have 2 MiB, which share an all-reduce, or more, which do not.
    """
    unit = 2**19
    graph = draw(graphs if graphs is not None else series_parallel_graphs())
    steps = st.integers(0, 8)
    layers = [
        replace(
            layer,
            input_bytes=tuple(unit * draw(st.sampled_from([0, 1, 2, 5])) for _ in layer.predecessors),
            parameter_bytes=4 * unit * draw(steps),
        )
        for layer in graph.layers
    ]
    measurements = []
    for layer in layers:
        forward, backward = ([1e-3 * (draw(steps) + draw(steps) * b) for b in (1, 2, 4, 8)] for _ in range(2))
        forward[:] = [time + 1e-3 for time in forward]
        measurements.append(Measurement(layer.signature, tuple(forward), tuple(backward), (0.0,) * 4))
    link = Link(1e3 * unit, 0.0, "drawn")
    cluster = Cluster(draw(st.sampled_from(gpus)), "drawn", 8, link, link)
    # An update takes no time, or about as long as a layer.
    update = draw(st.sampled_from([0.0, 1e-3 / unit]))
    return make_profile(replace(graph, layers=tuple(layers)), measurements, (1, 2, 4, 8), update), cluster, 8


@st.composite
def computing_problems(draw, graphs=None, gpus=(2, 4)):
    """Contested problems whose cores compute a share of all-reduces, which take a second per 2 GB, or more."""
    profile, cluster, batch = draw(contested_problems(graphs, gpus))
    share, slower = draw(st.sampled_from([0.25, 0.5, 0.9, 1.0])), draw(st.sampled_from([1, 2]))
    network = measured_network({count: [size * slower / 2**30 for size in CURVE_SIZES] for count in (2, 4)})
    groups = tuple(
        replace(group, curve=replace(group.curve, computing=(share,) * len(CURVE_SIZES)))
        for group in network.all_reduce
    )
    # A byte is copied in no time, or in as much as it takes to sum it.
    copying = draw(st.sampled_from([0.0, slower / 2**30]))
    measured = replace(network, all_reduce=groups, copy_seconds_per_byte=copying)
    return profile, replace(cluster, measured=measured), batch


@st.composite
def tied_problems(draw, made_of):
    """Problems in which layers use the parameters of earlier ones."""
    profile, cluster, batch = draw(made_of)
    layers = list(profile.graph.layers)
    for _ in range(draw(st.integers(1, 3))):
        first, second = sorted(draw(st.lists(st.integers(0, len(layers) - 1), min_size=2, max_size=2)))
        names = {"parameters": layers[first].parameters, "parameter_bytes": layers[first].parameter_bytes}
        layers[second] = replace(layers[second], **names)
    return replace(profile, graph=replace(profile.graph, layers=tuple(layers))), cluster, batch


def make_graph(predecessors, input_bytes=None, parameter_bytes=None, activation_bytes=None):
    """A layer graph from its edges; by default it moves and synchronises nothing, and nobody knows what it keeps."""
    layers = [
        Layer(
            name=f"layer{index}",
            operators=("conv2d",),
            predecessors=tuple(sources),
            input_bytes=tuple(input_bytes[index]) if input_bytes else (0,) * len(sources),
            parameter_bytes=parameter_bytes[index] if parameter_bytes else 0,
            parameters=(f"layer{index}.weight",),
            signature=f"signature{index}",
            activation_bytes=activation_bytes[index] if activation_bytes else None,
            autocast_activation_bytes=activation_bytes[index] // 2 if activation_bytes else None,
        )
        for index, sources in enumerate(predecessors)
    ]
    return LayerGraph("drawn", (3, 8, 8), tuple(layers), sum(layer.parameter_bytes for layer in layers))


def make_profile(graph, measurements, batch_sizes=BATCH_SIZES, update_per_byte=0.0):
    """A profile that says it was estimated, since nothing measured it. Unless asked for, updates take no time."""
    return Profile(
        graph=graph,
        batch_sizes=tuple(batch_sizes),
        measurements=tuple(measurements),
        device="cpu",
        device_name="drawn",
        precision="fp32",
        threads=1,
        provenance="estimated",
        method="drawn by Hypothesis or made by hand",
        date="2026-01-01",
        versions={},
        update_per_byte=update_per_byte,
    )


def profile_from_times(graph, times, batch_sizes=BATCH_SIZES):
    """A profile from one function per layer, per-GPU batch → forward seconds; backward takes none."""
    return make_profile(
        graph,
        [
            Measurement(
                layer.signature,
                tuple(time(b) for b in batch_sizes),
                (0.0,) * len(batch_sizes),
                (0.0,) * len(batch_sizes),
            )
            for layer, time in zip(graph.layers, times, strict=True)
        ],
        batch_sizes,
    )


def _parts(total, count):
    """``count`` positive numbers whose sum is ``total``."""
    cuts = st.sets(st.integers(1, total - 1), min_size=count - 1, max_size=count - 1) if total > 1 else st.just(set())
    return cuts.map(lambda found: [b - a for a, b in zip([0, *sorted(found)], [*sorted(found), total], strict=True)])


@st.composite
def _layer_graphs(draw, predecessors: Predecessors):
    """Numbers the layers in some topological order (a model may run its branches by turns) and draws their sizes."""
    rank = draw(st.permutations(range(len(predecessors))))
    order: list[int] = []
    while len(order) < len(predecessors):
        ready = [i for i, sources in enumerate(predecessors) if i not in order and {*sources} <= {DATA, *order}]
        order.append(min(ready, key=rank.__getitem__))
    place = {old: new for new, old in enumerate(order)}
    edges = [tuple(sorted(place[source] for source in predecessors[old] if source != DATA)) for old in order]
    size = st.sampled_from([0, 64, 4096, 2**18, 2**22])
    return make_graph(
        edges,
        [[draw(size) for _ in sources] for sources in edges],
        [draw(st.sampled_from([0, 4096, 2**20, 2**26])) for _ in edges],
    )
