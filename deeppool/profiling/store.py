"""What an interrupted measurement keeps: finished times, appended one JSON line at a time."""

import json
from pathlib import Path

Key = tuple[str, int]
"""Layer signature and per-GPU batch size."""
Times = tuple[float, float, float]
"""Forward and backward seconds, spread."""


class MeasurementLog:
    """Finished measurements of one profile, on disk as soon as they are made.

    A log of another model, device or method is not continued but begun anew: ``conditions`` tells.
    """

    def __init__(self, path: Path | None, conditions: str) -> None:
        """Reads what an earlier, interrupted measurement left at ``path``; with None nothing is kept."""
        self.path = path
        self.times: dict[Key, Times] = {}
        if path is None:
            return
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and lines[0] == conditions:
            for line in lines[1:]:
                try:
                    signature, batch, forward, backward, spread = json.loads(line)
                except ValueError:
                    break  # the interruption cut this line short
                self.times[signature, batch] = (forward, backward, spread)
        self._write_all(conditions)

    def _write_all(self, conditions: str) -> None:
        assert self.path is not None
        lines = [conditions, *(json.dumps([*key, *times]) for key, times in self.times.items())]
        self.path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def add(self, key: Key, times: Times) -> None:
        """Keeps one finished measurement."""
        self.times[key] = times
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps([*key, *times]) + "\n")

    def remove(self) -> None:
        """The profile is whole and saved: the log has served."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
