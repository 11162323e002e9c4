"""Words that stand for something else than they say are not used; the standard term of each is beside it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
METAPHORS = {
    "bury": "reap",
    "cradle": "fork server",
    "crew": "worker group",
    "culprit": "root cause",
    "guilt": "attributed slowdown",
    "guilty": "attributed slowdown",
    "heed": "handle",
    "innocent": "not attributed",
    "kin": "descendants",
    "lodge": "start a background",
    "lodger": "in-process background",
    "lodging": "collocated rank",
    "mourn": "reap",
    "neighbour": "background group, adjacent",
    "nursery": "fork server client",
    "seat": "host slot, rank slot",
    "settling": "evaluation of a block",
    "steering": "run control",
    "vigil": "hang detector",
    "witness": "block of correlated rounds",
}
"""Metaphor → standard term. Generic words (ring, tail, share, child) are none."""
OF_THE_SEARCH = {"crossing": "parallel block", "knot": "region that is not series-parallel"}
"""Metaphors outside the search core, which has its own names until it is rebuilt."""
SEARCH = (CHECKOUT / "deeppool" / "planning" / "search", CHECKOUT / "tests" / "planning" / "search")
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
"""A part of an identifier, or a word of prose."""


def banned(path: Path) -> dict[str, str]:
    return METAPHORS if any(folder in path.parents for folder in SEARCH) else METAPHORS | OF_THE_SEARCH


def found_in(text: str, words: dict[str, str]) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        for word in WORD.findall(line):
            plain = word.lower()
            for form in {plain, plain.removesuffix("s"), plain.removesuffix("es"), re.sub("ies$", "y", plain)}:
                if form in words:
                    yield f"{number}: '{word}' (say: {words[form]})"


def files() -> list[Path]:
    """Code, guides and notebooks; the changelog of earlier versions keeps their words."""
    folders = ("deeppool", "tests", "benchmarks", "docs", "examples", "notebooks")
    found = [path for folder in folders for path in (CHECKOUT / folder).rglob("*") if path.suffix in TEXTS]
    return sorted({*found, CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"} - {Path(__file__)})


TEXTS = {".py", ".md", ".ipynb", ".html", ".js"}


def test_no_metaphor_is_left() -> None:
    left = {
        str(path.relative_to(CHECKOUT)): hits
        for path in files()
        if (hits := list(found_in(path.read_text(encoding="utf-8"), banned(path))))
    }
    assert left == {}


@pytest.mark.parametrize(
    "text", ["class Lodger:", "def _bury(self)", "the nurseries end", "HOST_SEAT = 1", "its neighbours", "knots"]
)
def test_a_metaphor_is_found_in_names_and_in_prose(text: str) -> None:
    assert len(list(found_in(text, METAPHORS | OF_THE_SEARCH))) == 1


@pytest.mark.parametrize("text", ["ring all-reduce", "a crewless word", "seating", "burying is a word of its own"])
def test_other_words_are_left_alone(text: str) -> None:
    assert list(found_in(text, METAPHORS | OF_THE_SEARCH)) == []
