"""Names of the ways that are compared, and what each differs in from synchronous training by DDP."""

from deeppool.collectives.transfer_methods import CARAMEL, DDP, FEWER, TUNED_DDP

DOUBLED_DDP, APART, BURST, CROSSOVER, TWO_WAVES, MAJORITY, SOLO = (
    "DDP, twice the batch",
    "two jobs apart",
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
    FEWER: "on {count} of {ranks} ranks",
    APART: "two jobs, each on {count} of {ranks} ranks",
    DOUBLED_DDP: "half as many updates, of twice the batch",
    CROSSOVER: "two jobs",
    TWO_WAVES: "two replicas, each update from the mean of two batches",
    MAJORITY: "gradients of late ranks come later",
    SOLO: "gradients of late ranks come later",
    ONE_PARTITION: "one rank at a time",
    PIPELINE: "{micro_batches} micro-batches",
    GPIPE: "{micro_batches} micro-batches",
}
"""What the training by a way differs in, and the settings that were the fastest."""
TECHNIQUES = {
    BURST: "burst parallelism",
    CARAMEL: "ordered transfers",
    CROSSOVER: "crossover",
    TWO_WAVES: "two waves",
    MAJORITY: "partial all-reduces",
    SOLO: "partial all-reduces",
    ROTATING: "rotating partitions",
}
"""Technique, by the name that the advice has for it where it knows it, that a way performs; the others are controls."""
CONTROLS_OF = {APART: CROSSOVER, DOUBLED_DDP: TWO_WAVES}
"""Controls that change the training, and the one way that changes it likewise."""
DATA_PARALLEL_WAVES = (TUNED_DDP, FEWER, DOUBLED_DDP, TWO_WAVES)
PIPELINES = (PIPELINE, GPIPE)
MODEL_PARALLEL_WAVES = (ONE_PARTITION, GPIPE, PIPELINE, ROTATING)
FIVE_TECHNIQUES = (TUNED_DDP, FEWER, BURST, MAJORITY, CARAMEL, APART, CROSSOVER, DOUBLED_DDP, TWO_WAVES)
WAYS = (*dict.fromkeys((*FIVE_TECHNIQUES, DDP, SOLO, *MODEL_PARALLEL_WAVES)),)
"""All ways."""
