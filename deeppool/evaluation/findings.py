"""What a notebook finds while it runs, collected a line at a time, and saved at its end."""

import datetime
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deeppool.base import serialization
from deeppool.device.cpu import processor_name
from deeppool.device.environment import package_versions
from deeppool.device.nvml import Nvml
from deeppool.evaluation.record import Basis, Check, Evaluation, Number

RECORD = "record.json"
"""In a notebook's output folder."""


class Findings:
    """Numbers and checks of one evaluation notebook, in the order in which they are first told.

    ::

        findings = Findings("fig10", "Trade-off against cluster partitions", {"gpus": gpus}, device=profile.device_name)
        findings.number("vgg16, speed-up at equal throughput", 1.31, "x", "simulated", paper=1.38, why="other profile")
        findings.check("vgg16 gains from burst parallelism", 1.31 > 1.05, "1.31x over data parallelism")
        findings.save(output)
    """

    def __init__(
        self, name: str, title: str, parameters: Mapping[str, Any] | None = None, *, device: str | None = None
    ) -> None:
        """Nothing is found yet.

        Args:
            name: of the notebook, as in ``deeppool evaluate fig10``.
            title: what the table or figure shows.
            parameters: of the notebook, those that its numbers depend on; JSON values.
            device: of which the numbers are; this machine's GPU or processor unless given.
        """
        self.name, self.title = name, title
        self.parameters = dict(parameters or {})
        self.device = machine() if device is None else device
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
    ) -> Number:
        """Adds a number, see :class:`Number`; one of the same name takes the earlier one's place.

        A cell that runs again, as people do, must not end in an error.
        """
        number = Number(name, float(value), unit, basis, None if spread is None else float(spread), _plain(paper), why)
        self._numbers[name] = number
        return number

    def check(self, statement: str, holds: object, detail: str = "", *, known: str = "") -> Check:
        """Adds a statement, see :class:`Check`; the same statement takes the earlier one's place."""
        check = Check(statement, bool(holds), detail, known)
        self._checks[statement] = check
        return check

    def evaluation(self) -> Evaluation:
        """All that was told until now, as a record."""
        return Evaluation(
            name=self.name,
            title=self.title,
            numbers=tuple(self._numbers.values()),
            checks=tuple(self._checks.values()),
            device=self.device,
            date=datetime.date.today().isoformat(),
            versions=package_versions("deeppool", "torch"),
            parameters=self.parameters,
        )

    def save(self, folder: str | os.PathLike[str]) -> Evaluation:
        """Writes ``record.json`` into the notebook's output folder, and returns the record.

        Raises:
            DocumentError: the folder cannot be written.
        """
        made = self.evaluation()
        serialization.write(made, Path(folder) / RECORD)
        return made


def machine() -> str:
    """This machine's GPUs, or its processor where there are none."""
    with Nvml() as nvml:
        names = nvml.names
    return f"{len(names)} x {names[0]}" if names else processor_name()


def _plain(paper: float | str | None) -> float | str | None:
    """Numpy's numbers are none of JSON's."""
    return paper if paper is None or isinstance(paper, str) else float(paper)
