"""Whether the ranks of a run fit on this machine."""

from types import SimpleNamespace

import psutil
import pytest

from deeppool.errors import RunError
from deeppool.processes.launcher import LocalLauncher


@pytest.mark.parametrize(
    ("ranks", "cores", "needed", "step"),
    [
        (4, 8, 3, "plan with --gpus 3"),
        (64, 2, 1, "plan with --gpus 2"),
        (2, 8, 6, "plan with --gpus 1"),
        (1, 8, 12, "end what else uses memory, or take a smaller model"),
    ],
    ids=["more cores than ranks", "fewer cores", "one fits", "none fits"],
)
def test_the_message_about_too_little_memory_says_how_many_ranks_have_enough(
    ranks: int, cores: int, needed: int, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deeppool.processes.launcher.usable_cores", lambda: list(range(cores)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=11 * 2**30))
    launcher = LocalLauncher("cpu", ranks)
    with pytest.raises(RunError, match=rf"needs {ranks} ranks of vgg16, .* available and {cores} cores \({step}\)"):
        launcher.check("vgg16", needed * 2**30)
    launcher.check("vgg16", 11 * 2**30 // ranks)
