"""What pages show of make and of Python scripts can be typed: there is such a target, module and option."""

import argparse
import functools
import importlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.markdown import blocks, prose
from tests.docs.test_guides import CHECKOUT, PAGES

COMMAND = re.compile(
    r"""(?:^[ ]{0,4}(?:command:[ ])?|`)          # in a block, in the head of a result, or in text
    (?:[A-Z_0-9]+=\S+[ ])*                       # variables of the environment
    (?P<command>(?:\S*/)?(?:python3?[ ](?:-m[ ]|\S+\.py)|make[ ][a-z])[^`\n]*)""",
    flags=re.MULTILINE | re.VERBOSE,
)
NOTE = re.compile(r" \([^()]*\)$")
"""Words behind a command that are none of it."""


def shown(text: str) -> Iterator[list[str]]:
    """Yields the words of the commands in blocks, in text, and in the heads of results."""
    outside = prose(text)
    spans = re.findall(r"`[^`]+`", outside)
    heads = re.findall(r"^command: .*$", outside, flags=re.MULTILINE)
    indented = re.findall(r"^ {4}\S.*$", outside, flags=re.MULTILINE)
    for part in (*blocks(text), *(span.replace("\n", " ") for span in spans), *heads, *indented):
        for found in COMMAND.finditer(part.replace("\\\n", " ")):
            words = shlex.split(NOTE.sub("", found["command"].replace("…", "").rstrip()), comments=True)
            yield [Path(words[0]).name.removesuffix("3"), *words[1:]]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


class Parsed(SystemExit):
    """A script has parsed its options."""


@functools.cache
def script(path: Path) -> ModuleType:
    """Loads a script as Python would run it: modules beside it are imported by their names alone."""
    spec = importlib.util.spec_from_file_location(f"script_{len(sys.modules)}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    paths, before = sys.path.copy(), set(sys.modules)
    sys.path.insert(0, str(path.parent))
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = paths
        # Scripts of other folders have others of the same names.
        for name in {beside.stem for beside in path.parent.glob("*.py")} & (set(sys.modules) - before):
            del sys.modules[name]
    return module


def check(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Raises what a user would be told of a target, a module or an option that there is not."""
    program, *words = words
    if program == "make":
        assert {word for word in words if "=" not in word} <= targets(), f"make {words}"
        return
    is_module = words[0] == "-m"
    name, *options = words[is_module:]
    if not is_module:
        assert (CHECKOUT / name).is_file(), name
        name = ".".join(Path(name).with_suffix("").parts)
    if name.partition(".")[0] not in ("benchmarks", "docs"):
        assert importlib.util.find_spec(name), name
        return
    module = importlib.import_module(name) if is_module else script(CHECKOUT / words[0])
    assert "parse_args" in Path(module.__file__ or "").read_text(encoding="utf-8"), f"{name} has no parser"
    parse = argparse.ArgumentParser.parse_known_args

    def parse_args(parser: argparse.ArgumentParser) -> None:
        _, rest = parse(parser, options)
        assert not rest, f"{name} does not take {rest}"
        raise Parsed

    def error(parser: argparse.ArgumentParser, message: str) -> None:
        raise AssertionError(f"{name} {options}: {message}")

    with monkeypatch.context() as patched:
        patched.setattr(argparse.ArgumentParser, "parse_args", parse_args)
        patched.setattr(argparse.ArgumentParser, "error", error)
        with pytest.raises(Parsed):
            module.main()


# The page of results repeats what the READMEs of benchmarks show.
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name != "results.md"],
    ids=lambda page: str(page.relative_to(CHECKOUT)),
)
def test_targets_and_scripts_take_what_they_are_shown_with(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in shown(page.read_text(encoding="utf-8")):
        check(words, monkeypatch)


def test_what_cannot_be_typed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    told = (
        "Type `make demo`.\n"
        "```\nPYTHONPATH=. python benchmarks/advice/main.py vgg16 \\\n  -o a.json  # some\nmake lunch\n```\n"
        "<!-- result\ncommand: .venv/bin/python3 -m benchmarks.advice.main --unknown (as above)\n-->\n"
        "    python -m benchmarks.nothing\n    python benchmarks/network/patterns.py loopback --rounds many\n"
    )
    block, *rest = sorted(shown(told), key=lambda words: words[1] != "benchmarks/advice/main.py")
    assert block == ["python", "benchmarks/advice/main.py", "vgg16", "-o", "a.json"]
    assert len(rest) == 5
    check(block, monkeypatch)
    check(["make", "demo"], monkeypatch)
    for words in (
        ["make", "lunch"],
        ["python", "-m", "benchmarks.advice.main", "--unknown"],
        ["python", "benchmarks/network/patterns.py", "loopback", "--rounds", "many"],
        ["python", "benchmarks/advice/other.py"],
        ["python", "-m", "no_such_module"],
    ):
        with pytest.raises(AssertionError):
            check(words, monkeypatch)
    with pytest.raises(ModuleNotFoundError):
        check(["python", "-m", "benchmarks.nothing"], monkeypatch)


def test_most_commands_are_seen() -> None:
    """A page that says how it was measured shows it; a pattern that finds nothing would check nothing."""
    seen = [words for page in PAGES for words in shown(page.read_text(encoding="utf-8"))]
    assert sum(words[0] == "make" for words in seen) >= 10
    assert len({words[words.index("-m") + 1] if "-m" in words else words[1] for words in seen}) >= 40
