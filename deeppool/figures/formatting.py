"""Texts that figures share: provenance, time units, GPU ranges, shortened names."""

import html
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from deeppool.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class TimeUnit:
    """The unit of a time axis."""

    name: str
    seconds: float

    def of(self, seconds: float) -> float:
        """Returns the seconds in this unit."""
        return seconds / self.seconds


def time_unit(longest: float) -> TimeUnit:
    """Returns the unit in which an axis up to ``longest`` seconds is easy to read: s, ms or us."""
    for unit in (TimeUnit("s", 1.0), TimeUnit("ms", 1e-3)):
        if longest >= unit.seconds:
            return unit
    return TimeUnit("us", 1e-6)


def escape(text: str) -> str:
    """Escapes text for plotly, which would drop ``<lambda>`` as an unknown tag."""
    return html.escape(text, quote=False)


def shorten(name: str, limit: int = 26) -> str:
    """Cuts the middle out of a long name: both ends of ``Mixed_5b.branch3x3dbl_1.conv`` matter."""
    if len(name) <= limit:
        return name
    head = (limit - 1) // 2
    return f"{name[:head]}…{name[head + 1 - limit :]}"


def shorten_text(text: str, limit: int) -> str:
    """Cuts the end off a long text, between two words; the middle out of one long word."""
    cut = textwrap.shorten(text, limit, placeholder=" …")
    return shorten(text, limit) if cut == "…" else cut


def wrap_lines(text: str, width: int) -> str:
    """Wraps each line of an escaped text at ``width`` visible characters, with ``<br>``; tags keep their text."""
    # Tags, entities and a name's own private characters as one private character each while the lines are divided.
    marks: list[str] = []

    def hide(found: re.Match[str]) -> str:
        marks.append(found[0])
        return chr(0xE000 + len(marks) - 1)

    hidden = [re.sub(r"<[^>]+>|&\w+;|[\ue000-\uf8ff]", hide, line) for line in text.split("<br>")]
    wrapped = [textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""] for line in hidden]
    joined = "<br>".join(line for lines in wrapped for line in lines)
    return re.sub(r"[\ue000-\uf8ff]", lambda found: marks[ord(found[0]) - 0xE000], joined)


def preformatted(text: str) -> str:
    """Returns lines for a fixed-width font as HTML; on a narrow page tables scroll sideways, and other lines wrap."""
    # JupyterLab breaks lines of a <pre>, also within words, and an exported notebook gives it the font of prose.
    font = "font-family: var(--jp-code-font-family, monospace); font-size: var(--jp-code-font-size, 13px)"
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        is_table = any(line.strip() and not line.strip(" ─") for line in block.splitlines())
        style = "white-space: pre; overflow-x: auto" if is_table else "white-space: pre-wrap; overflow-wrap: anywhere"
        blocks.append(f'<pre style="{style}; word-break: normal; {font}; margin: 0 0 1em">{html.escape(block)}</pre>')
    # A table is not as wide as it could be, but as its page has room.
    style = "display: grid; grid-template-columns: minmax(0, 1fr)"
    return f'<div class="dp-text" style="{style}">{"".join(blocks)}</div>'


def gpu_ranges(gpus: Iterable[int]) -> str:
    """Formats the GPUs 4, 5, 6, 7 and 12 as ``GPU 4–7, 12``."""
    ordered = sorted(gpus)
    runs: list[tuple[int, int]] = []
    if ordered and ordered[-1] - ordered[0] == len(set(ordered)) - 1:
        # Consecutive numbers, the common case: no need to iterate over a thousand GPUs.
        runs, ordered = [(ordered[0], ordered[-1])], []
    for gpu in ordered:
        if runs and runs[-1][1] == gpu - 1:
            runs[-1] = (runs[-1][0], gpu)
        else:
            runs.append((gpu, gpu))
    return "GPU " + ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def plan_provenance(plan: Plan) -> str:
    """States what a plan's predicted times are based on."""
    far = len(plan.extrapolated_layers)
    note = f", {far} of {len(plan.layers)} extrapolated" if far else ""
    overlap = "; all-reduces overlap the backward pass" if plan.overlap_sync else "; nothing overlaps the all-reduces"
    return (
        f"from {plan.provenance} layer times{note} ({escape(plan.device_name)}); "
        f"transfers computed from the links of {escape(plan.cluster.name)}{overlap}"
    )
