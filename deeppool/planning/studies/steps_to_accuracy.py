"""Steps to a target accuracy as a function of the global batch: named models with sources, and files of your own.

Shallue et al., "Measuring the Effects of Data Parallelism on Neural Network Training" (JMLR 20(112), 2019),
describe three regimes: *perfect scaling*, where a batch twice as large needs half the steps; *diminishing
returns*; and *maximal data parallelism*, where a larger batch saves no step. Where they lie varies widely between
workloads. The paper shows its curves as figures; the one that DeepPool's section 2 uses, VGG-11 on ImageNet to error
0.35, is here as read from the figure (``vgg11-shallue2019``). Take another from their measurements, a separate download
(github.com/google-research/google-research, batch_science), or measure your own, and give it as a :class:`StepsTable`.
"""

import math
import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from deeppool.base import serialization
from deeppool.base.arguments import check_fields, typed
from deeppool.base.number_checks import real_number, whole_number
from deeppool.errors import DocumentError, InvalidValueError, MissingStepsError


@runtime_checkable
class StepsToAccuracy(Protocol):
    """Protocol of a model of the steps that a global batch needs to the target accuracy."""

    @property
    def name(self) -> str:
        """Name in figures: the workload and its target."""

    @property
    def source(self) -> str:
        """Source of its numbers: a paper and its section, or how they were measured."""

    def steps(self, batch: int) -> int:
        """Returns the number of steps at a global batch.

        Raises:
            MissingStepsError: the source has no data for this batch.
        """


@dataclass(frozen=True, slots=True)
class CriticalBatch:
    """steps = least_steps x (1 + critical_batch / batch), rounded up.

    Far below the critical batch the steps halve when the batch doubles, far above they stay at the least: the
    three regimes of Shallue et al. in two parameters. The form is that of McCandlish et al., "An Empirical Model
    of Large-Batch Training" (arXiv:1812.06162, section 2.3), where (S / S_min - 1) (E / E_min - 1) = 1 with S
    steps and E = S x batch samples; the critical batch E_min / S_min costs twice the fewest steps and twice
    the fewest samples.
    """

    KIND: ClassVar[str] = "critical-batch"

    name: str
    source: str
    least_steps: float
    """The least number of steps, however large the batch."""
    critical_batch: float
    """Critical batch in samples."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("least_steps", "critical_batch"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        if not (0 < self.least_steps < math.inf and 0 <= self.critical_batch < math.inf):
            raise InvalidValueError(
                f"least_steps must be positive and critical_batch not negative, got {self.least_steps:g} and "
                f"{self.critical_batch:g}"
            )

    def steps(self, batch: int) -> int:
        """Returns the number of steps, at any batch."""
        return _round_up(self.least_steps * (1 + self.critical_batch / _checked(batch)))

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.least_steps:.6g} steps at least, twice as many at batch {self.critical_batch:.6g} "
            f"({self.source})"
        )


@dataclass(frozen=True, slots=True)
class FixedSamples:
    """Perfect scaling: an equal number of samples at every batch up to the largest one that the source reached."""

    KIND: ClassVar[str] = "fixed-samples"

    name: str
    source: str
    samples: int
    largest_batch: int
    """Largest batch at which the source reached the target with these samples."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("samples", "largest_batch"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))

    def steps(self, batch: int) -> int:
        """Returns the number of steps, up to the largest batch.

        Raises:
            MissingStepsError: above it.
        """
        if _checked(batch) > self.largest_batch:
            raise MissingStepsError(
                f"no steps for a global batch of {batch}: {self.name} is known up to {self.largest_batch} "
                "(choose a smaller batch or another --steps-to-accuracy)"
            )
        return -(-self.samples // batch)

    def __str__(self) -> str:
        return f"{self.name}: {self.samples} samples at any batch up to {self.largest_batch} ({self.source})"


@dataclass(frozen=True, slots=True)
class StepsTable:
    """Measured pairs of global batch and steps, interpolated by a power law (a straight line in log-log)."""

    KIND: ClassVar[str] = "steps-table"

    name: str
    source: str
    pairs: tuple[tuple[int, int], ...]
    """(batch, steps), batches ascending."""

    def __post_init__(self) -> None:
        check_fields(self)
        given = [tuple(pair) for pair in self.pairs]
        in_pairs = given if {len(pair) for pair in given} == {2} else []
        pairs = tuple((whole_number("batch", one, None), whole_number("steps", other, None)) for one, other in in_pairs)
        object.__setattr__(self, "pairs", pairs)
        batches = [batch for batch, _ in pairs]
        if len(batches) < 2 or batches != sorted(set(batches)) or min(map(min, pairs)) < 1:
            raise InvalidValueError(
                f"pairs must be two or more of (batch, steps), positive, batches ascending; got {given}"
            )

    def steps(self, batch: int) -> int:
        """Returns the number of steps, between the smallest and the largest batch.

        Raises:
            MissingStepsError: outside, where nothing was measured.
        """
        batches = [known for known, _ in self.pairs]
        if not batches[0] <= _checked(batch) <= batches[-1]:
            raise MissingStepsError(
                f"no steps for a global batch of {batch}: {self.name} has {batches[0]} to {batches[-1]} "
                "(measure more batches, or choose one inside)"
            )
        upper = max(1, bisect_left(batches, batch))
        (low, most), (high, fewest) = self.pairs[upper - 1], self.pairs[upper]
        fraction = math.log(batch / low) / math.log(high / low)
        return _round_up(math.exp(math.log(most) + fraction * math.log(fewest / most)))

    def __str__(self) -> str:
        (low, most), (high, fewest) = self.pairs[0], self.pairs[-1]
        return f"{self.name}: {most} steps at batch {low} to {fewest} at batch {high} ({self.source})"


def _round_up(steps: float) -> int:
    """Returns the next whole number; one that is off by a few units in the last place does not round up."""
    return math.ceil(steps * (1 - 1e-12))


def _checked(batch: int) -> int:
    return whole_number("a global batch", batch)


KnownSteps = CriticalBatch | FixedSamples | StepsTable
"""The models that can be a file."""

NAMED: dict[str, KnownSteps] = {
    "example": CriticalBatch(
        "an example",
        "round numbers chosen for this example, from no paper and no training",
        least_steps=10_000,
        critical_batch=2048,
    ),
    "imagenet-90-epochs": FixedSamples(
        "ResNet-50 on ImageNet, 90 epochs",
        "Goyal et al., arXiv:1706.02677: as accurate at batch 8192 as at 256 after 90 epochs of 1,281,167 images",
        samples=90 * 1_281_167,
        largest_batch=8192,
    ),
    # Corners of the drawn line, fitted to the pixels of a picture of 640 x 559, of which one is 6.5 % of the steps; the
    # axis from its grid lines. The same reading of pictures drawn from known steps was off by 0.4 % in the median of 44
    # steps, by 3.7 % at worst. Part of the picture was damaged: rows that could not be read do not count, and 65,536
    # rests on one clean row. The figure has no batch of 128.
    "vgg11-shallue2019": StepsTable(
        "VGG-11 on ImageNet to validation error 0.35",
        "Shallue et al., JMLR 20(112), 2019: read to about 3 % from the figure 'VGG-11 on ImageNet' (Nesterov "
        "momentum) in the notebook beside the paper, github.com/google-research/google-research, batch_science",
        pairs=(
            (32, 1_620_000),
            (64, 841_000),
            (256, 213_000),
            (512, 111_000),
            (1024, 58_100),
            (2048, 46_000),
            (4096, 36_700),
            (8192, 30_600),
            (16_384, 21_300),
            (32_768, 14_200),
            (65_536, 13_800),
        ),
    ),
}

_KINDS: dict[str, type[KnownSteps]] = {kind.KIND: kind for kind in (CriticalBatch, FixedSamples, StepsTable)}


@typed
def find_steps(name_or_file: str | os.PathLike[str]) -> KnownSteps:
    """Returns a model by name, or one from a file.

    Raises:
        InvalidValueError: neither a name nor a file.
        DocumentError: the file holds no such model.
    """
    if name_or_file in NAMED:
        return NAMED[name_or_file]
    if not os.path.exists(name_or_file):
        raise InvalidValueError(
            f"no steps to accuracy '{name_or_file}': neither a file nor one of {', '.join(NAMED)} (a file of your own "
            'is {"format": "deeppool/steps-table", "version": 1, "name": …, "source": …, "pairs": [[batch, steps], …]})'
        )
    document = serialization.read_object(name_or_file)
    kind = str(document.get("format", "")).removeprefix("deeppool/")
    if kind not in _KINDS:
        raise DocumentError(
            f"{name_or_file}: field 'format' is {document.get('format')!r}, expected deeppool/ and one of "
            f"{', '.join(_KINDS)} (is it another kind of file?)"
        )
    return serialization.from_json(document, _KINDS[kind], name_or_file)
