"""Heartbeats: a change of activity is reported at once, and never overtaken by the activity before."""

import pytest

from deeppool.processes import heartbeat as heartbeat_module
from deeppool.processes.heartbeat import Activity, Heartbeat


class Launcher:
    """Records what is sent to it."""

    def __init__(self) -> None:
        self.answers: list[dict] = []

    def answer(self, event: str, **content: object) -> None:
        self.answers.append({"event": event, **content})


def test_a_new_phase_is_reported_before_the_next_heartbeat_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat_module, "PERIOD", 1000.0)
    launcher = Launcher()
    heartbeat = Heartbeat(launcher)
    for what in ("making the model and the data", "training, between stages", "writing its part of a checkpoint"):
        heartbeat.enter(what)
        assert launcher.answers[-1]["event"] == "heartbeat"
        assert launcher.answers[-1]["what"] == what
    heartbeat.enter("waiting for a command", waits=True)
    assert launcher.answers[-1]["waits"]
    # A trainer knows better than the phase.
    heartbeat.probe = lambda: Activity("forward of stage conv1 (update 3)", 0.0, waits=False)
    heartbeat.enter("training, between stages")
    assert launcher.answers[-1]["what"] == "forward of stage conv1 (update 3)"
