"""Collects the numbers and checks of an evaluation notebook while it runs, and saves them as its record."""

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.device.cpu import processor_name
from deeppool.device.environment import package_versions
from deeppool.device.nvml import Nvml
from deeppool.evaluation.entries import Basis, Check, Number
from deeppool.evaluation.paper_values import paper_values
from deeppool.evaluation.record import Evaluation

RECORD = "record.json"
"""File name of the record in a notebook's output folder."""


class Findings:
    """Numbers and checks of one evaluation notebook, in the order in which they are first added.

    ::

        findings = Findings("fig10", "Trade-off against cluster partitions", {"gpus": gpus}, device=profile.device_name)
        findings.number("vgg16, speed-up at equal throughput", 1.31, "x", "simulated", paper=1.38, why="other profile")
        findings.check("vgg16 gains from burst parallelism", 1.31 > 1.05, "1.31x over data parallelism")
        findings.save(output)
    """

    def __init__(
        self, name: str, title: str, parameters: Mapping[str, Any] | None = None, *, device: str | None = None
    ) -> None:
        """Creates empty findings.

        Args:
            name: the notebook's name, as in ``deeppool evaluate fig10``.
            title: content of the table or figure.
            parameters: the notebook's parameters that the numbers depend on; JSON values.
            device: device that the numbers describe; by default this machine's GPU or processor.
        """
        self.name, self.title = name, title
        self.parameters = dict(parameters or {})
        self.device = machine() if device is None else device
        self.paper = paper_values(name)
        """What the paper prints for it; nothing for a notebook of one's own."""
        self._numbers: dict[str, Number] = {}
        self._checks: dict[str, Check] = {}

    def number(
        self,
        name: str,
        value: float,
        unit: str,
        basis: Basis,
        *,
        spread: float | None = None,
        paper: float | str | None = None,
        why: str = "",
    ) -> None:
        """Adds a number, see :class:`Number`; it replaces an earlier one of the same name, so a cell can be run again.

        Without ``paper`` it stands beside the value of that name in ``papers/``, if there is one; ``why`` is kept only
        where there is a value to differ from.
        """
        printed = self.paper.beside(name)
        if paper is None and printed is not None:
            paper = printed.value
        why = why if paper is not None else ""
        spread = None if spread is None else float(spread)
        self._numbers[name] = Number(name, float(value), unit, basis, spread, _plain(paper), why)

    def check(
        self, statement: str, holds: object, detail: str = "", *, known: str = "", inapplicable: str = ""
    ) -> None:
        """Adds a check, see :class:`Check`; it replaces an earlier one of the same statement."""
        self._checks[statement] = Check(statement, bool(holds), detail, known, inapplicable)

    def evaluation(self) -> Evaluation:
        """Returns the numbers and checks added so far, as a record."""
        return Evaluation(
            name=self.name,
            title=self.title,
            numbers=tuple(self._numbers.values()),
            checks=tuple(self._checks.values()),
            device=self.device,
            date=datetime.date.today().isoformat(),
            versions=package_versions("deeppool", "torch"),
            parameters=self.parameters,
            paper=self.paper,
        )

    def save(self, folder: str | os.PathLike[str]) -> Evaluation:
        """Writes ``record.json`` into the notebook's output folder, and returns the record.

        Raises:
            DocumentError: the folder cannot be written.
        """
        evaluation = self.evaluation()
        serialization.write(evaluation, Path(folder) / RECORD)
        return evaluation


def machine() -> str:
    """Returns the name of this machine's GPUs, or of its processor if it has none."""
    with Nvml() as nvml:
        names = nvml.names
    return f"{len(names)} x {names[0]}" if names else processor_name()


def _plain(paper: float | str | None) -> float | str | None:
    """Converts numpy's numbers, which JSON does not take."""
    return paper if paper is None or isinstance(paper, str) else float(paper)
