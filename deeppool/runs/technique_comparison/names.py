"""Names of the ways that are compared, and what each differs in from synchronous training by DDP."""

from deeppool.collectives.transfer_methods import CARAMEL, DDP, TUNED_DDP

ONE_RANK, DOUBLED_DDP, BURST, CROSSOVER, TWO_WAVES, MAJORITY, SOLO = (
    "one rank",
    "DDP, twice the batch",
    "burst parallelism",
    "crossover",
    "two waves",
    "majority",
    "solo",
)
ONE_PARTITION, ROTATING, PIPELINE, GPIPE = (
    "model parallelism",
    "rotating partitions",
    "1F1B pipeline",
    "GPipe pipeline",
)

NOTES = {
    ONE_RANK: "the others wait",
    DOUBLED_DDP: "half as many updates, of twice the batch",
    CROSSOVER: "two jobs",
    TWO_WAVES: "two replicas, each update from the mean of two batches",
    MAJORITY: "gradients of late ranks come later",
    SOLO: "gradients of late ranks come later",
    ONE_PARTITION: "one rank at a time",
}
"""What the training by a way differs in."""
TECHNIQUES = {
    BURST: "burst parallelism",
    CARAMEL: "ordered transfers",
    CROSSOVER: "crossover",
    TWO_WAVES: "two waves",
    MAJORITY: "partial all-reduces",
    SOLO: "partial all-reduces",
}
"""Technique, by the name that the advice has for it, that a way performs."""
DATA_PARALLEL_WAVES = (TUNED_DDP, DOUBLED_DDP, TWO_WAVES)
MODEL_PARALLEL_WAVES = (ONE_PARTITION, GPIPE, PIPELINE, ROTATING)
FIVE_TECHNIQUES = (TUNED_DDP, ONE_RANK, BURST, MAJORITY, CARAMEL, CROSSOVER, DOUBLED_DDP, TWO_WAVES)
WAYS = (*dict.fromkeys((*FIVE_TECHNIQUES, DDP, SOLO, *MODEL_PARALLEL_WAVES)),)
"""All ways."""
