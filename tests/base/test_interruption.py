"""An interrupted call is one line in a notebook, and still a KeyboardInterrupt everywhere else."""

import atexit
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import deeppool as dp
from deeppool.base.interruption import interruptible
from deeppool.base.run_registry import registered


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Handles it as Python does in a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """An IPython without history, as a notebook's kernel has one."""
    made = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    yield made
    made.atexit_operations()
    atexit.unregister(made.atexit_operations)


def compute() -> None:
    """Is interrupted as by Ctrl-C, or a notebook's square."""
    signal.raise_signal(signal.SIGINT)


@interruptible
def inner() -> None:
    compute()


@interruptible
@registered
def outer(*, on_progress: Any = None) -> None:
    inner()


def test_a_notebook_shows_one_line_and_the_name_of_the_call_that_its_user_made(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.user_ns["outer"] = outer
    result = shell.run_cell("outer()")
    shown = capsys.readouterr()
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert (shown.out + shown.err).strip() == (
        "KeyboardInterrupt: outer was interrupted, nothing of it is running any more"
    )


def test_an_interrupted_script_ends_by_the_signal_by_which_a_shell_ends_its_loop() -> None:
    script = "import signal; from deeppool.base.interruption import interruptible;"
    script += "interruptible(lambda: signal.raise_signal(signal.SIGINT))()"
    ended = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.endswith("KeyboardInterrupt: <lambda> was interrupted, nothing of it is running any more\n")


def test_other_errors_keep_their_traceback(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    shell.user_ns["compute"] = interruptible(lambda: 1 // 0)
    shell.run_cell("compute()")
    assert "Traceback" in capsys.readouterr().out


def test_the_public_calls_that_take_long_are_interruptible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is interrupted in the first thing that it does with its argument."""

    class Interrupts:
        def __getattr__(self, name: str) -> None:
            compute()

        def __fspath__(self) -> str:
            compute()
            return ""

    for function, options in (
        (dp.plan, {"cluster": "dgx-a100", "global_batch": 8}),
        (dp.frontier, {"cluster": "dgx-a100", "global_batch": 8}),
        (dp.launch, {}),
        (dp.train, {"job": None, "steps": 1}),
    ):
        with pytest.raises(KeyboardInterrupt, match=f"^{function.__name__} was interrupted"):
            function(Interrupts(), **options)
