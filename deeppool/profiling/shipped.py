"""Profiles that come with deeppool, by name.

Every file ``data/<name>.json`` is one. `make shipped` measures those of a CPU again, ``benchmarks/gpu`` those of an
H200 (fp16, under CUDA graphs).
"""

from dataclasses import dataclass
from os.path import exists
from pathlib import Path
from typing import ClassVar

from deeppool.base import serialization
from deeppool.base.arguments import typed
from deeppool.errors import DocumentError
from deeppool.profiling.table import Profile

FOLDER = Path(__file__).with_name("data")


@dataclass(frozen=True, slots=True)
class ShippedProfile:
    """Summary of a shipped profile."""

    name: str
    model: str
    input_shape: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    device_name: str
    precision: str
    threads: int
    date: str
    deviation: float | None
    """Largest relative deviation of the layer sum from the whole iteration over the batch sizes."""

    def __str__(self) -> str:
        shape, sizes = "x".join(map(str, self.input_shape)), ", ".join(map(str, self.batch_sizes))
        off = "" if self.deviation is None else f", layers within {100 * abs(self.deviation):.1f} % of the iteration"
        return (
            f"{self.name}: {self.model} on {shape}, batch {sizes}; {self.device_name} ({self.precision}, "
            f"{self.threads} thread{'s' * (self.threads > 1)}), {self.date}{off}"
        )


@dataclass(frozen=True, slots=True)
class ShippedProfiles:
    """List of the shipped profiles."""

    KIND: ClassVar[str] = "profile-list"

    profiles: tuple[ShippedProfile, ...]

    def __str__(self) -> str:
        return (
            "\n".join(map(str, self.profiles)) or "no profiles are shipped (deeppool profile MODEL -o FILE makes one)"
        )


def list_profiles() -> ShippedProfiles:
    """Lists the profiles that :func:`find_profile` finds by name."""
    return ShippedProfiles(tuple(_describe(name, find_profile(name)) for name in shipped_names()))


@typed
def find_profile(name_or_file: str | Path) -> Profile:
    """Reads a profile from a file, or a shipped one by name.

    Raises:
        DocumentError: neither a file nor a name, or the file is not a profile.
    """
    path = Path(name_or_file)
    if exists(path) or path.suffix == ".json" or len(path.parts) > 1:
        return serialization.read(path, Profile)
    names = shipped_names()
    if path.name not in names:
        shipped = f"one of {', '.join(names)}" if names else "the name of a shipped one"
        raise DocumentError(
            f"no profile '{name_or_file}': neither a file nor {shipped} (make one: deeppool profile MODEL -o FILE)"
        )
    return serialization.read(FOLDER / f"{path.name}.json", Profile)


def shipped_names() -> list[str]:
    """Returns the names of the shipped profiles, in order."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def _describe(name: str, profile: Profile) -> ShippedProfile:
    return ShippedProfile(
        name=name,
        model=profile.graph.model,
        input_shape=profile.graph.input_shape,
        batch_sizes=profile.batch_sizes,
        device_name=profile.device_name,
        precision=profile.precision,
        threads=profile.threads,
        date=profile.date,
        deviation=max((check.deviation for check in profile.checks), key=abs, default=None),
    )
