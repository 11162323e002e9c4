"""A run over torchrun's processes is the run of one machine, and whatever dies, nothing stays and one line says why."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as some

import deeppool as dp
from deeppool.errors import DocumentError, RunError
from deeppool.execution import checkpoint
from deeppool.processes.clock_offset import ClockOffset
from deeppool.processes.torchrun.channel import HANDSHAKE_SECONDS, Channel
from deeppool.processes.torchrun.host_server import HostSlot
from deeppool.processes.torchrun.launcher import LOOPBACK, HostConnection, listen
from deeppool.processes.torchrun.rendezvous import WorkerGroup, _gather
from examples import own_training
from tests.conftest import CHECKOUT
from tests.processes import restarted_job
from tests.processes.children import gone, kill_all, runs
from tests.ranks import free_port
from tests.runs import test_elastic_ranks
from tests.strategies import profile_from_times
from tests.waiting import wait_until

EXAMPLE = "examples.two_branch:two_branch"
TIMEOUT = 300
"""Seconds for what takes a few on an idle machine."""
END = 120
"""Seconds for everything to end: 10 at most on an idle machine, more than 20 on a busy one."""
LONG = "100000"
"""Updates that no test waits for."""
# A job that a shell put into the background ignores Ctrl-C, and so would its children: these tests may be one.
# What torchrun loads stays: a search for garbage in it takes as long as torchrun itself.
TORCHRUN = """
import atexit
import gc
import signal
gc.disable()
atexit.register(gc.freeze)
signal.signal(signal.SIGINT, signal.default_int_handler)
from torch.distributed.run import main
main()
"""


@dataclass
class Torchrun:
    """torchrun on one node or two, all of this machine, each "node" with a core of its own."""

    nodes: int
    per_node: int
    command: Sequence[str]
    folder: Path
    program: Sequence[str] = ("-m", "deeppool.cli")
    second: Sequence[str] = ()
    """Starts the second node's torchrun."""
    elastic: bool = False
    """Whether one node goes on without the others, which may come later."""
    started: list[subprocess.Popen] = field(default_factory=list)
    port: int = field(default_factory=free_port)

    def __enter__(self) -> "Torchrun":
        for node in range(self.nodes):
            self.start(node)
        return self

    def start(self, node: int) -> None:
        """Starts the torchrun of a node."""
        cores = sorted(os.sched_getaffinity(0))
        own = cores if self.nodes == 1 else [cores[node % len(cores)]]
        meeting = [
            *("--nnodes", str(self.nodes), "--node-rank", str(node)),
            *("--master-addr", LOOPBACK, "--master-port", str(self.port)),
        ]
        if self.elastic:
            settings = f"is_host={int(node == 0)},last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"
            meeting = [
                *("--nnodes", f"1:{self.nodes}", "--max-restarts", "3", "--local-addr", LOOPBACK, "--rdzv-id", "test"),
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{LOOPBACK}:{self.port}", "--rdzv-conf", settings),
            ]
        command = [
            *("taskset", "-c", ",".join(map(str, own)), *(self.second if node else ()), sys.executable, "-c"),
            *(TORCHRUN, *meeting, "--nproc-per-node", str(self.per_node)),
            *(*self.program, *self.command),
        ]
        out, error = (self.folder / f"{node}.{name}" for name in ("out", "err"))
        with out.open("a") as stdout, error.open("a") as stderr:
            # torch 2.13 gives a node that comes later no address of its shared store.
            sharing = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if self.elastic else {}
            environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **sharing}
            self.started.append(subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=stdout, stderr=stderr))

    def __exit__(self, *_: object) -> None:
        kill_all(self.processes())
        for process in self.started:
            process.wait()

    def processes(self) -> list[psutil.Process]:
        """All that were started, by whomever."""
        found = []
        for process in self.started:
            with contextlib.suppress(psutil.NoSuchProcess):
                own = psutil.Process(process.pid)
                found += [own, *own.children(recursive=True)]
        return found

    def process(self, node: int) -> psutil.Process:
        """torchrun's process of a node: the launcher on the first."""
        found = [x for x in psutil.Process(self.started[node].pid).children(True) if "deeppool.cli" in x.cmdline()]
        return next(x for x in found if "torch.distributed.run" not in " ".join(x.cmdline()))

    def rank(self, node: int) -> psutil.Process:
        """The process of a node's rank."""
        return next(x for x in self.process(node).children(True) if runs(x, "execution.worker"))

    def codes(self, seconds: float = TIMEOUT) -> list[int]:
        """Exit codes, when all have ended."""
        deadline = time.monotonic() + seconds
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.started]

    def out(self, node: int = 0) -> str:
        """Standard output of a node."""
        return (self.folder / f"{node}.out").read_text()

    def errors(self) -> list[str]:
        """What the command told, on all nodes; torchrun adds a report of its own."""
        said = "".join((self.folder / f"{node}.err").read_text() for node in range(self.nodes))
        return [line for line in said.splitlines() if line.startswith("error: ")]


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_plan(tmp_path_factory, own_training.job().capture().graph, 2)


@pytest.fixture(scope="module")
def alone(plan_file: Path) -> list[float]:
    """Losses of the same training without torchrun."""
    return [update.loss for update in dp.train(dp.load(plan_file), own_training.job(), steps=4).metrics]


def save_plan(tmp_path_factory: pytest.TempPathFactory, graph, gpus: int, batch: int = 32) -> Path:
    plan = dp.plan(profile_from_times(graph, [lambda b: 1e-3 * b] * len(graph.layers)), gpus, batch)
    return dp.save(plan, tmp_path_factory.mktemp("plan") / "plan.json")


def train(plan: Path, *options: str) -> list[str]:
    return ["train", str(plan), "examples.own_training:job", *options]


pytestmark = [pytest.mark.usefixtures("in_the_checkout")]

# -- the same training ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.stress)])
def test_torchruns_processes_train_as_one_machine_does(
    nodes, per_node, plan_file: Path, alone: list[float], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    command = train(plan_file, "--steps", "3", "--checkpoints", str(kept), "--json")
    with Torchrun(nodes, per_node, command, tmp_path) as run:
        assert run.codes() == [0] * nodes, run.errors()
    told = json.loads(run.out())
    assert [update["loss"] for update in told["metrics"]] == alone[:3]
    assert [path.name for path in kept.iterdir()] == ["step-000003"]
    # Rank 0 speaks for all.
    assert [run.out(node) for node in range(1, nodes)] == [""] * (nodes - 1)
    assert run.errors() == []


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.stress
def test_nodes_change_their_plan_through_the_folder_that_they_share(
    plan_file: Path, alone: list[float], tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    program = (str(CHECKOUT / "tests" / "runs" / "replanning_job.py"),)
    with Torchrun(2, 1, (str(plan_file), str(kept)), tmp_path, program=program) as run:
        assert run.codes() == [0, 0], (run.errors(), (tmp_path / "0.err").read_text())
    told = json.loads(run.out())
    assert told["switched"]
    assert [update["loss"] for update in told["metrics"]] == pytest.approx(alone, rel=1e-4)
    assert [path.name for path in sorted(kept.iterdir())] == ["step-000002", "step-000004"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.stress
def test_ranks_with_loader_workers_start_again_after_one_was_killed(
    plan_file: Path, alone: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(restarted_job.KILLED, str(tmp_path / "killed"))
    command = ["train", str(plan_file), "tests.processes.restarted_job:job", "--steps", "4", "--restarts", "1"]
    command += ["--checkpoints", str(tmp_path / "kept"), "--checkpoint-every", "2", "--json"]
    with Torchrun(2, 1, command, tmp_path) as run:
        assert run.codes() == [0, 0], (run.errors(), (tmp_path / "0.err").read_text())
    told = json.loads(run.out())
    assert (tmp_path / "killed").exists()
    assert told["restarts"] == 1
    assert [update["loss"] for update in told["metrics"]][-2:] == alone[2:]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.stress
def test_a_training_goes_on_without_a_lost_node_and_with_it_when_it_is_back(tmp_path: Path) -> None:
    kept, steps = tmp_path / "kept", 600
    plan = dp.save(test_elastic_ranks.make_plan(2), tmp_path / "plan.json")
    profile = dp.save(test_elastic_ranks.make_profile(), tmp_path / "profile.json")
    command = ["train", str(plan), "tests.runs.test_elastic_ranks:slow_job", "--steps", str(steps), "--restarts", "3"]
    command += ["--checkpoints", str(kept), "--checkpoint-every", "20", "--min-ranks", "1", "--profile", str(profile)]

    def writes_with(ranks: int) -> Callable[[], bool]:
        def does() -> bool:
            # torchrun interrupts the command to start it again with another node.
            assert not [error for error in run.errors() if "interrupted" not in error]
            found = checkpoint.latest(kept)
            # A newer one may replace it just now.
            with contextlib.suppress(DocumentError):
                return found is not None and checkpoint.read(found).ranks == ranks
            return False

        return does

    with Torchrun(2, 1, [*command, "--json"], tmp_path, elastic=True) as run:
        wait_until(writes_with(2), TIMEOUT, "a checkpoint of both nodes")
        for process in [*psutil.Process(run.started[1].pid).children(True), run.started[1]]:
            process.kill()
        wait_until(writes_with(1), TIMEOUT, "a checkpoint of one node")
        run.start(1)
        wait_until(writes_with(2), TIMEOUT, "another checkpoint of both nodes")
        assert run.codes() == [0, -signal.SIGKILL, 0], run.errors()
    told = json.loads(run.out() or run.out(1))
    # Of the last start of the command.
    losses = [update["loss"] for update in told["metrics"]]
    expected = test_elastic_ranks.plain_losses(steps)[-len(losses) :]
    assert losses == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert [len(attempt["gpus"]) for attempt in told["attempts"]] == [2]


OTHER_CLOCK = ("unshare", "--time", "--monotonic", "5000", "--fork", "--kill-child")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.root
@pytest.mark.stress
def test_a_node_whose_clock_shows_something_else_is_on_the_launchers_timeline(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    if subprocess.run([*OTHER_CLOCK, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine has no namespaces of time")
    # An iteration computes for many time slices, of which a background of equal priority gets as many, whatever else
    # runs on the core. At the lowest priority it may get none beside another process.
    plan_file = save_plan(tmp_path_factory, dp.capture(EXAMPLE).graph, 2, batch=256)
    record_file = tmp_path / "run.json"
    command = ["run", str(plan_file), "--steps", "3", "--background", EXAMPLE, "--policy", "naive"]
    command += ["-o", str(record_file)]
    with Torchrun(2, 1, command, tmp_path, second=OTHER_CLOCK) as run:
        assert run.codes() == [0, 0], run.errors()
    record = dp.load(record_file)
    # An offset that was not seen would stretch the iteration to more than an hour, or push a rank out of it.
    assert record.timeline.duration < 10 * record.foreground.iteration_time.p99
    kinds = [{span.kind for span in record.timeline.spans if span.gpu == gpu} for gpu in range(2)]
    assert all({"forward", "backward", "background"} <= found for found in kinds)
    assert all(span.duration >= 0 for span in record.timeline.spans)


# -- faults -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def training(plan_file: Path, folder: Path) -> Iterator[Torchrun]:
    """Two nodes, when the first checkpoint is written."""
    kept = folder / "kept"
    command = train(plan_file, "--steps", LONG, "--checkpoints", str(kept), "--checkpoint-every", "5")
    with Torchrun(2, 1, command, folder) as run:
        wait_until(lambda: any(kept.glob("step-?????0")) or any(run.errors()), TIMEOUT, "a checkpoint")
        assert run.errors() == []
        yield run


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("victim", "number", "told"),
    [
        (lambda run: run.rank(1), signal.SIGKILL, "rank 1 was killed by signal 9 while it trained"),
        pytest.param(
            lambda run: run.process(1),
            signal.SIGKILL,
            "rank 1 was lost: torchrun's process of rank 1 on ",
            marks=pytest.mark.stress,
        ),
        pytest.param(
            lambda run: run.process(0),
            signal.SIGKILL,
            "rank 0 of torchrun is gone; what rank 1 had started was ended",
            marks=pytest.mark.stress,
        ),
        pytest.param(
            lambda run: psutil.Process(run.started[0].pid),
            signal.SIGINT,
            "interrupted; every process of the training",
            marks=pytest.mark.stress,
        ),
    ],
    ids=["rank", "host server", "launcher", "control-c"],
)
def test_whatever_dies_all_end_and_one_line_says_why(victim, number, told, plan_file: Path, tmp_path: Path) -> None:
    with training(plan_file, tmp_path) as run:
        everything = run.processes()
        assert len(everything) >= 6, "two torchruns, two of their processes, two ranks"
        victim(run).send_signal(number)
        codes = run.codes(END)
        wait_until(lambda: all(map(gone, everything)), END, f"the end of {everything}")
        assert all(codes)
        (error,) = run.errors()
        assert told in error


@pytest.mark.processes
@pytest.mark.stress
def test_a_plan_for_other_ranks_is_refused_once(plan_file: Path, tmp_path: Path) -> None:
    with Torchrun(1, 3, train(plan_file, "--steps", "1"), tmp_path) as run:
        assert run.codes() == [1]
    (error,) = run.errors()
    assert error.startswith("error: the plan is for 2 ranks, torchrun has started 3 processes (plan with --gpus 3")


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.root
@pytest.mark.stress
def test_a_folder_that_nodes_do_not_share_is_refused_before_anything_is_trained(
    plan_file: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    elsewhere = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {kept} && exec "$@"', "sh")
    if subprocess.run([*elsewhere, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this container may not mount")
    command = train(plan_file, "--steps", LONG, "--checkpoints", str(kept))
    with Torchrun(2, 1, command, tmp_path, second=elsewhere) as run:
        assert all(run.codes())
    (error,) = run.errors()
    assert "rank 1 gave up" in error
    assert f"does not see {kept}/" in error
    assert "a folder that all nodes share" in error
    assert list(kept.iterdir()) == []


# -- what they are made of --------------------------------------------------------------------------


KEY = b"key"


def connect(*keys: bytes) -> list[Channel | ConnectionError]:
    """Both ends of a connection, the accepting one first; an error in place of an end that was refused."""
    with socket.create_server((LOOPBACK, 0)) as listener, ThreadPoolExecutor() as threads:
        made = socket.create_connection(listener.getsockname())
        ends = [
            threads.submit(Channel, end, key, accepted=accepted)
            for end, key, accepted in ((listener.accept()[0], keys[0], True), (made, keys[-1], False))
        ]
    return [end.exception() or end.result() for end in ends]


def test_the_launcher_listens_at_the_address_that_was_asked_for_only() -> None:
    def addresses(asked: str) -> str:
        with listen(asked) as listener:
            return str(listener.getsockname()[0])

    assert [addresses(name) for name in ("127.0.0.1", "127.0.0.5", "localhost", "::1")] == ["127.0.0.1"] * 4
    every = {"::", "0.0.0.0"}
    # TEST-NET-1: an address of no machine, as one that a network translates.
    assert addresses("192.0.2.1") in every
    own = {x.address for found in psutil.net_if_addrs().values() for x in found if x.family == socket.AF_INET}
    for address in sorted(own - {"127.0.0.1"})[:1]:
        assert addresses(address) == address


def test_only_a_group_beyond_the_loopback_says_what_others_can_read() -> None:
    slot = HostSlot(0, 0, 1, 0, "host", (0,), 0, 0, "")
    assert WorkerGroup({}, slot, LOOPBACK).exposure is None
    assert "unencrypted (rank 0 at 192.0.2.1)" in (WorkerGroup({}, slot, "192.0.2.1").exposure or "")


def test_ends_with_different_keys_refuse_each_other() -> None:
    assert [type(end) for end in connect(KEY, b"other")] == 2 * [ConnectionError]


def test_messages_and_files_arrive_in_order_and_complete(tmp_path: Path) -> None:
    here, there = connect(KEY)
    contents = {"empty": b"", "lines": b"a\nb\n", "large": os.urandom(3_000_000)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)

    def talk() -> None:
        here.send("first", number=1)
        for name in contents:
            here.send_file(tmp_path / name)
        here.send("last")
        here.close()

    threading.Thread(target=talk).start()
    target = tmp_path / "there"
    target.mkdir()
    events = []
    for message in there:
        events.append(message["event"])
        if message["event"] == "file":
            there.receive_file(target / message["name"], message["size"])
    there.close()
    assert events == ["first", "file", "file", "file", "last"]
    assert {path.name: path.read_bytes() for path in target.iterdir()} == contents


def test_half_a_message_of_a_killed_process_is_ignored() -> None:
    here, there = connect(KEY)
    here.send("whole")
    here._socket.sendall(struct.pack("!i", 100) + b'{"event": "ha')
    here.close()
    assert [message["event"] for message in there] == ["whole"]
    there.close()


def test_the_cpu_seconds_of_a_process_are_not_those_that_were_asked_for_before(monkeypatch) -> None:
    monkeypatch.setattr("deeppool.processes.torchrun.launcher.ANSWER_SECONDS", 0.2)
    here, there = connect(KEY)
    connection = HostConnection(here, HostSlot(1, 0, 1, 1, "there", (0,), 1, 0, "."))
    process = connection.start("some.module", "rank 1", None)
    assert process.cpu_seconds() is None
    there.send("cpu", process=0, seconds=1.0)
    there.send("answer", process=0, message={"event": "ready"})
    process.inbox.get(timeout=10)
    threading.Timer(0.05, there.send, ["cpu"], {"process": 0, "seconds": 2.0}).start()
    assert process.cpu_seconds() == 2.0
    there.close()
    connection.close()


def test_connections_without_the_key_are_refused_and_delay_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import HashStore

    monkeypatch.setenv("WORLD_SIZE", "2")
    store, gathered = HashStore(), []
    thread = threading.Thread(target=lambda: gathered.append(_gather(store, LOOPBACK)), daemon=True)
    thread.start()
    found = json.loads(store.get("launcher"))
    address = found["address"], found["port"]
    slot = HostSlot(1, local_rank=0, local_ranks=1, node=1, host="there", cores=(0,), memory=1, gpus=0, folder=".")
    with socket.create_connection(address, timeout=10):
        for first in (b"GET / HTTP/1.1\r\n", b"\x00\x00\x00\x10" + 16 * b"?", 300 * b"\x00"):
            with socket.create_connection(address, timeout=10) as stranger:
                stranger.sendall(first)
                with contextlib.suppress(ConnectionResetError):
                    while stranger.recv(1000):
                        pass
        with pytest.raises(ConnectionError, match="could not be authenticated"):
            Channel(socket.create_connection(address), b"guess", accepted=False)
        worker = Channel(socket.create_connection(address), bytes.fromhex(found["authkey"]), accepted=False)
        worker.send("hello", slot=asdict(slot))
        thread.join(HANDSHAKE_SECONDS / 2)
        assert gathered, "a connection that sends nothing held up the others"
    ((rank, connection),) = gathered[0].items()
    assert (rank, connection.slot) == (1, slot)
    worker.close()
    connection.close()


def test_ranks_that_do_not_come_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed import HashStore

    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setattr("deeppool.processes.torchrun.rendezvous.RENDEZVOUS_SECONDS", 0.0)
    with pytest.raises(RunError, match=r"torchrun's ranks 1, 2, 3 did not reach rank 0 at 127.0.0.1:\d+ within 0 s"):
        _gather(HashStore(), LOOPBACK)


seconds = some.floats(0, 1, allow_nan=False)


@given(ahead=some.floats(-1e4, 1e4), trips=some.lists(some.tuples(seconds, seconds), min_size=1, max_size=20))
def test_an_offset_is_never_further_off_than_half_of_the_fastest_round_trip(
    ahead: float, trips: list[tuple[float, float]]
) -> None:
    offset, clock = ClockOffset(), 100.0
    for out, back in trips:
        offset.add(clock, clock + out + ahead, clock + out + back)
        clock += 1
    assert abs(offset.seconds - ahead) <= min(out + back for out, back in trips[-8:]) / 2 + 1e-9
