"""What README and guides show can be typed: commands and their options, calls and their arguments, links."""

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import deeppool as dp
from deeppool.cli.app import app
from tests.docs.markdown import blocks, prose

CHECKOUT = Path(__file__).parents[2]
PAGES = [
    CHECKOUT / "README.md",
    CHECKOUT / "CONTRIBUTING.md",
    *sorted(CHECKOUT.glob("docs/*.md")),
    *sorted(CHECKOUT.glob("benchmarks/*/README.md")),
]
GENERATED = {"records.md", "reference.md"}
"""Pages of the site that docs/generated_pages.py makes."""
OF_TORCH = {"operator torchvision::nms does not exist"}
"""Messages in the page on troubleshooting that are not deeppool's."""
COMMAND = re.compile(r"(?:^|[`(])deeppool ([a-z][^`|]*)", flags=re.MULTILINE)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))


def commands(text: str) -> Iterator[list[str]]:
    """Of lines in blocks and of code within text; a comment behind one is none of it."""
    typed = "".join(blocks(text)).replace("\\\n", " ")
    spans = "\n".join(f"`{span}`" for span in re.findall(r"(?<!`)`(deeppool [^`]+)`", prose(text)))
    for line in (typed + spans).splitlines():
        for command in COMMAND.findall(line):
            yield shlex.split(command.replace("…", ""), comments=True)


def python(text: str) -> list[ast.Module]:
    return [ast.parse(block) for block in blocks(text, "python")]


def check_command(words: list[str]) -> None:
    """Raises what a shell's user would be told of an option, or of a command that there is not."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        name, *words = words
        assert name in command.commands, f"there is no command {name}"
        command = command.commands[name]
    command.make_parser(command.context_class(command)).parse_args(words)


def found(name: str) -> Any:
    value: Any = dp
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def named(node: ast.expr) -> str | None:
    """``dp.figures.timeline`` of an expression that is such a name."""
    text = ast.unparse(node)
    return text if re.fullmatch(r"dp(\.\w+)+", text) else None


@every_page
def test_commands_take_the_options_that_they_are_shown_with(page: Path) -> None:
    for words in commands(page.read_text(encoding="utf-8")):
        check_command(words)


@every_page
def test_calls_take_the_arguments_that_they_are_shown_with(page: Path) -> None:
    for module in python(page.read_text(encoding="utf-8")):
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and (name := named(node.func)) is not None:
                # What stands for arguments is none.
                given = [argument for argument in node.args if ast.unparse(argument) != "..."]
                keywords = {word.arg: word.value for word in node.keywords if word.arg is not None}
                inspect.signature(found(name)).bind_partial(*given, **keywords)


@every_page
def test_names_of_the_library_are_there(page: Path) -> None:
    for name in re.findall(r"\bdp(?:\.[A-Za-z]\w*)+", page.read_text(encoding="utf-8")):
        found(name)


@every_page
def test_links_and_pictures_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        is_made = page.parent.name == "docs" and link in GENERATED
        assert is_made or link.startswith("https://") or (page.parent / link).exists(), link


def messages() -> Iterator[str]:
    """Texts in the code, without docstrings, each with an ellipsis for every value in it."""
    for path in (CHECKOUT / "deeppool").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
                yield node.value


@pytest.mark.slow
def test_messages_that_are_quoted_are_printed() -> None:
    page = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    seen = re.findall(r"^\| (`.*?) \|", page, flags=re.MULTILINE)
    quoted = {span for cell in seen for span in re.findall("`([^`]+)`", cell)} - OF_TORCH
    assert len(quoted) > 5
    printed = "\n".join(messages())
    for text in quoted:
        # An ellipsis and a capital letter stand for values.
        parts = map(re.escape, re.split(r"…|\b[A-Z]\b", text))
        assert re.search(".*".join(parts), printed), text


def test_what_cannot_be_typed_is_found() -> None:
    """The checks above see commands and calls, and tell wrong ones."""
    told = (
        "```python\ndp.plan()\n```\ndeeppool is a word\n```\ndeeppool plan a.json --gpus 2   # two\n```\n"
        "`deeppool cluster status --json`, `deeppool plan --gps 2`"
    )
    first, second, third = commands(told)
    check_command(first)
    check_command(second)
    with pytest.raises(Exception, match="No such option: --gps"):
        check_command(third)
    with pytest.raises(AssertionError, match="no command simulated"):
        check_command(["simulated"])
    with pytest.raises(AttributeError):
        found("dp.plann")
