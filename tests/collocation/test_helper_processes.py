"""Helper processes: one that ends, or says nothing, is reported once and left out; the processes are fakes."""

from types import SimpleNamespace

import pytest

from deeppool.collocation.helper_processes import HelperProcesses
from deeppool.processes.managed_process import Inbox, Message


class FakeProcess:
    def __init__(self, inbox: Inbox) -> None:
        self.inbox, self.sent, self.killed = inbox, [], False

    def send(self, command: str, **arguments: object) -> None:
        self.sent.append((command, arguments))

    def exit_reason(self) -> str:
        return "was killed by signal 9"

    def kill(self) -> None:
        self.killed = True

    def answer(self, event: str | None, **content: object) -> None:
        self.inbox.put((self, None if event is None else {"event": event, **content}))


class FakeLauncher:
    def worker_spec(self, rank: int) -> SimpleNamespace:
        return SimpleNamespace(core=10 + rank, index=rank, folder="of the run")

    def start(self, rank: int, module: str, name: str, inbox: Inbox) -> FakeProcess:
        return FakeProcess(inbox)


@pytest.fixture
def processes() -> HelperProcesses:
    return HelperProcesses()


@pytest.fixture
def started(processes: HelperProcesses) -> list[FakeProcess]:
    return [processes.start(FakeLauncher(), rank, "module", "job", batch=4) for rank in range(3)]


def test_each_is_told_its_place_and_its_task(started: list[FakeProcess]) -> None:
    assert started[1].sent == [("setup", {"core": 11, "index": 1, "folder": "of the run", "rank": 1, "batch": 4})]


def test_what_was_given_for_its_place_counts(processes: HelperProcesses) -> None:
    process = processes.start(FakeLauncher(), 0, "module", "job", folder="another one")
    assert process.sent[0][1]["folder"] == "another one"


@pytest.mark.parametrize(
    ("failure", "why", "refused"),
    [
        (None, "was killed by signal 9", False),
        ({"kind": "error", "text": "failed in step 3"}, "failed in step 3", False),
        ({"kind": "refusal", "text": "the dataset has 3 samples"}, "the dataset has 3 samples", True),
    ],
)
def test_one_that_ends_is_reported_once_with_its_reason_and_left_out(
    failure: Message | None, why: str, refused: bool, processes: HelperProcesses, started: list[FakeProcess]
) -> None:
    if failure is not None:
        started[1].answer("failed", **failure)
    started[1].answer(None)
    assert processes.receive(1.0) == (1, {"event": "ended", "why": why, "refused": refused})
    assert started[1].killed
    processes.send("rest")
    assert [process.sent[-1][0] for process in started] == ["rest", "setup", "rest"]
    started[1].answer(None)
    assert processes.receive(0.0) is None


def test_an_answer_is_awaited_from_all_that_live(processes: HelperProcesses, started: list[FakeProcess]) -> None:
    started[2].answer("resting", steps=2)
    started[0].answer("progress", steps=1)
    started[1].answer(None)
    started[0].answer("resting", steps=3)
    answers = processes.collect("resting", 1.0)
    assert [answers[rank].get("steps") for rank in range(3)] == [3, None, 2]
    assert answers[1]["why"] == "was killed by signal 9"
    for process in started:
        process.answer("resting", steps=4)
    assert processes.collect("resting", 1.0).keys() == {0, 2}


def test_those_that_say_nothing_are_ended(processes: HelperProcesses, started: list[FakeProcess]) -> None:
    started[0].answer("ready")
    answers = processes.collect("ready", 0.0)
    assert [answers[rank]["event"] for rank in range(3)] == ["ready", "ended", "ended"]
    assert answers[1]["why"] == "sent nothing for 0 s"
    assert [process.killed for process in started] == [False, True, True]
