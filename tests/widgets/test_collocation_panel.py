"""The panel of a collocated run without a page: a run that goes step by step, and a real one."""

import inspect
import queue
from dataclasses import replace
from pathlib import Path

import pytest

import deeppool as dp
from deeppool import figures
from deeppool.base.live_sample import BackgroundSample, LiveSample
from deeppool.base.sharing import MEANINGS, POLICIES, find_sharing
from deeppool.errors import RunCancelledError, RunError
from deeppool.job import Job
from deeppool.planning.report.as_code import launch_command, launch_python
from deeppool.records.run_record import RunRecord
from deeppool.runs import launch
from deeppool.widgets import CollocationPanel, collocation_panel
from tests.figures.records import run_of, two_layer_plan
from tests.runs.test_handle import with_processes
from tests.waiting import TIMEOUT, wait_until

ENDED = BackgroundSample(1, "ended", "killed by <signal> 9", 1.0, 2, 8)


def sample(time: float, condition: str, *, bound: float | None = None, job: BackgroundSample = ENDED) -> LiveSample:
    return LiveSample(time, condition, int(10 * time), 0.1, bound, 1.0, (job,))


class Scripted:
    """A launch that gives a sample whenever it is told to, and its record at last."""

    def __init__(self) -> None:
        self.given: dict = {}
        self.go: queue.SimpleQueue[LiveSample | RunRecord | Exception] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.bounds: list[float] = []

    def __call__(
        self,
        plan,
        *,
        background=None,
        policy=None,
        max_slowdown=None,
        background_batch=None,
        seconds=None,
        run_control=None,
        on_sample=None,
        on_progress=None,
    ) -> RunRecord:
        self.given = {
            "background": background,
            "policy": policy,
            "max_slowdown": max_slowdown,
            "background_batch": background_batch,
            "seconds": seconds,
        }
        run_control.open(None if background is None else find_sharing(policy, max_slowdown))
        self.done.put(None)
        while not isinstance(step := self.go.get(timeout=TIMEOUT), RunRecord):
            if isinstance(step, Exception):
                raise step
            on_progress("measuring", 0.5)
            on_sample(step)
            bound = run_control.take()
            self.bounds += [] if bound is None else [bound]
            self.done.put(None)
        return step

    def step(self, what: LiveSample | None = None) -> None:
        if what is not None:
            self.go.put(what)
        self.done.get(timeout=TIMEOUT)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Scripted:
    found = Scripted()
    # dp.start names a run after its function.
    found.__name__ = "launch"
    monkeypatch.setattr(collocation_panel, "launch", found)
    monkeypatch.setattr(collocation_panel, "INTERVAL", 0.0)
    monkeypatch.setattr(collocation_panel, "IDLE_RATIO", 0.0)
    return found


def panel_of(scripted: Scripted, tmp_path: Path, **options) -> CollocationPanel:
    return CollocationPanel(two_layer_plan(), folder=tmp_path / "runs", **options)


def finish(panel: CollocationPanel, scripted: Scripted, what: RunRecord | Exception) -> None:
    scripted.go.put(what)
    wait_until(lambda: not panel.launch.disabled)


def test_the_scripted_launch_takes_what_the_real_one_does() -> None:
    assert set(inspect.signature(Scripted().__call__).parameters) <= set(inspect.signature(launch.launch).parameters)


def test_nothing_runs_before_it_is_launched(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path)
    assert (panel.run, panel.record, panel.launch.disabled, panel.stop.disabled) == (None, None, False, True)
    assert "Nothing has run yet" in panel.status.value
    assert panel.static().data == figures.timeline(two_layer_plan()).data
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("chosen", "given"),
    [
        (
            {},
            {
                "background": "resnet18",
                "policy": "priority",
                "max_slowdown": None,
                "background_batch": 4,
                "seconds": 60,
            },
        ),
        (
            {"background": "vgg11", "policy": "naive", "max_slowdown": 0.1, "seconds": 5},
            {"background": "vgg11", "policy": "naive", "max_slowdown": 0.1, "background_batch": 4, "seconds": 5},
        ),
        (
            {"background": Job("vgg11", (3, 32, 32), 8), "policy": "feedback"},
            {
                "background": Job("vgg11", (3, 32, 32), 8),
                "policy": "feedback",
                "max_slowdown": None,
                "background_batch": None,
                "seconds": 60,
            },
        ),
        (
            {"policy": "none"},
            {"background": None, "policy": None, "max_slowdown": None, "background_batch": None, "seconds": 60},
        ),
    ],
)
def test_the_button_launches_what_the_controls_say(
    chosen: dict, given: dict, tmp_path: Path, scripted: Scripted
) -> None:
    panel = panel_of(scripted, tmp_path, **chosen)
    panel.launch.click()
    scripted.step()
    assert scripted.given == given
    finish(panel, scripted, run_of())


def test_iterations_are_drawn_while_it_runs_and_the_record_is_kept(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path, max_slowdown=0.05)
    panel.launch.click()
    scripted.step()
    assert (panel.launch.disabled, panel.stop.disabled, panel.settings.policy.disabled) == (True, False, True)
    for step in (sample(1.0, "awake"), sample(2.0, "collocated", bound=0.05), sample(3.0, "collocated", bound=0.05)):
        scripted.step(step)
    drawn = {trace.name: trace for trace in panel.figure.data}
    assert list(drawn["collocated"].x) == [2.0, 3.0]
    assert list(drawn["bound"].y)[1:] == pytest.approx([105, 105])
    assert "launch: measuring (50 %" in panel.status.value
    assert panel.bar.value == 0.5
    with pytest.raises(RunError, match="still running"):
        panel.begin()
    finish(panel, scripted, run_of())
    assert panel.record == run_of()
    assert panel.path.parent == tmp_path / "runs"
    assert dp.load(panel.path) == run_of()
    assert str(panel.path) in panel.status.value
    assert "harvest 30 %" in panel.status.value
    assert (panel.bar.bar_style, panel.stop.disabled, panel.settings.policy.disabled) == ("success", True, False)
    assert panel.static().data == figures.collocation(run_of()).data


def test_its_bound_is_changed_while_it_runs(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path, max_slowdown=0.05)
    bound = panel.settings.bound
    assert (bound.value, bound.disabled) == (5.0, False)
    panel.launch.click()
    scripted.step()
    scripted.step(sample(1.0, "collocated", bound=0.05))
    assert (bound.disabled, "can be changed now" in panel.settings.bound_hint.value) == (False, True)
    for percent in (4.0, 3.0, 2.0):
        bound.value = percent
    scripted.step(sample(2.0, "collocated", bound=0.02))
    assert scripted.bounds == [0.02]
    assert panel.run.bound == 0.02
    finish(panel, scripted, run_of())
    bound.value = 7.0
    assert panel.problem == ""


def test_where_no_bound_can_be_set_the_slider_is_disabled_and_says_why(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path)
    assert panel.settings.bound.disabled
    assert "Without a bound at the start" in panel.settings.bound_hint.value
    panel.settings.use_bound.value = True
    assert not panel.settings.bound.disabled
    panel.settings.use_bound.value = False
    panel.launch.click()
    scripted.step()
    scripted.step(sample(1.0, "collocated"))
    assert panel.settings.bound.disabled
    assert "nothing measures what the background costs" in panel.settings.bound_hint.value
    finish(panel, scripted, run_of())


def test_feedback_learns_so_a_bound_may_be_set_while_it_runs(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path, policy="feedback")
    panel.launch.click()
    scripted.step()
    scripted.step(sample(1.0, "collocated"))
    panel.settings.bound.value = 10.0
    scripted.step(sample(2.0, "collocated"))
    assert scripted.bounds == [pytest.approx(0.1)]
    finish(panel, scripted, run_of())


def test_a_background_that_has_died_is_reported_while_the_foreground_goes_on(
    tmp_path: Path, scripted: Scripted
) -> None:
    panel = panel_of(scripted, tmp_path)
    panel.launch.click()
    scripted.step()
    living = BackgroundSample(0, "training", None, 1.0, 3, 12)
    scripted.step(replace(sample(1.0, "collocated"), background=(living, ENDED)))
    first, second = panel.jobs.value.split("<br>")
    assert first == "background of rank 0: training, 3 steps, 12 samples"
    assert "rank 1 has ended after 2 steps: killed by &lt;signal&gt; 9; the foreground goes on" in second
    finish(panel, scripted, run_of())
    # Also where the page is drawn again.
    for _ in range(2):
        assert panel.jobs.value.endswith("rank 1 has ended after 2 steps: killed by &lt;signal&gt; 9</span>")
        assert "rank 0" not in panel.jobs.value
        assert panel.figure.layout.title.text == "Foreground and background"
        panel.dark = True


def test_a_run_that_fails_says_why_and_another_may_be_launched(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path)
    panel.launch.click()
    scripted.step()
    finish(panel, scripted, RunError("the <plan> needs 9 ranks"))
    assert "the &lt;plan&gt; needs 9 ranks" in panel.problem
    assert (panel.bar.bar_style, panel.record) == ("danger", None)
    panel.launch.click()
    scripted.step()
    assert panel.problem == ""
    finish(panel, scripted, run_of())
    assert panel.record == run_of()


def test_a_stopped_run_leaves_no_record(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path)
    panel.launch.click()
    scripted.step()
    panel.stop.click()
    scripted.go.put(sample(1.0, "awake"))
    with pytest.raises(RunCancelledError):
        panel.run.result(TIMEOUT)
    wait_until(lambda: not panel.launch.disabled)
    assert (panel.bar.bar_style, panel.record, panel.problem) == ("warning", None, "")
    assert not (tmp_path / "runs").exists()


def test_a_record_that_cannot_be_written_is_not_lost(tmp_path: Path, scripted: Scripted) -> None:
    (tmp_path / "runs").write_text("in the way")
    panel = panel_of(scripted, tmp_path)
    panel.launch.click()
    scripted.step()
    finish(panel, scripted, run_of())
    wait_until(lambda: bool(panel.problem))
    assert "cannot make the folder" in panel.problem
    assert panel.record == run_of()


def test_a_page_that_turns_dark_has_the_chart_drawn_again(tmp_path: Path, scripted: Scripted) -> None:
    panel = panel_of(scripted, tmp_path)
    panel.dark = True
    assert panel.figure.layout.template == figures.live([], dark=True).layout.template


def test_every_control_has_a_label_and_every_quantity_a_unit(tmp_path: Path, scripted: Scripted) -> None:
    settings = panel_of(scripted, tmp_path).settings
    names = ("background", "batch", "policy", "use_bound", "bound", "seconds")
    labels = [getattr(settings, name).description for name in names]
    assert labels == [
        "Background job",
        "Its batch (samples)",
        "Policy",
        "Hold a bound",
        "Bound (% slower)",
        "Measure for (s)",
    ]


def test_every_policy_is_explained_in_a_sentence(tmp_path: Path, scripted: Scripted) -> None:
    assert list(MEANINGS) == list(POLICIES)
    panel = panel_of(scripted, tmp_path)
    panel.settings.policy.value = "nice"
    assert "At nice 19" in panel.settings.policy_hint.value


@with_processes
@pytest.mark.stress
def test_a_real_run_is_followed_its_bound_changed_and_its_record_kept(tmp_path: Path) -> None:
    from tests.execution.test_faults import EXAMPLE, make_plan

    plan = make_plan(EXAMPLE)
    panel = CollocationPanel(
        plan, background=EXAMPLE, policy="paced", max_slowdown=0.5, seconds=8, folder=tmp_path / "runs"
    )
    panel.settings.batch.value = 2
    panel.launch.click()
    run = panel.run

    def collocated() -> list[LiveSample]:
        return [one for one in run.samples if one.condition == "collocated"]

    wait_until(lambda: bool(collocated()) or run.state != "running", 2 * TIMEOUT)
    panel.settings.bound.value = 1.0
    record = run.result(2 * TIMEOUT)
    wait_until(lambda: not panel.launch.disabled)
    assert panel.problem == ""
    assert dp.load(panel.path) == panel.record == record
    assert [held.bound for held in record.bounds] == [0.5, 0.01]
    assert record.sharing.max_slowdown == 0.01
    first, last = record.bounds
    assert first.since == 0 < last.since
    assert last.iterations == record.foreground.iteration_time.count > 0
    assert last.iteration_time == pytest.approx(record.foreground.iteration_time.mean)
    assert last.slowdown == pytest.approx(record.foreground.slowdown)
    assert last.background_throughput == pytest.approx(record.background.throughput)
    told = {one.bound for one in collocated()}
    assert told == {0.5, 0.01}
    assert {one.condition for one in run.samples} == {
        "warming up",
        "learning",
        "asleep",
        "awake",
        "collocated",
        "background alone",
    }
    assert [job.rank for job in run.samples[-1].background] == [0, 1]
    assert max(one.background[0].samples for one in run.samples) > 0
    assert "held         50 % from the start: " in str(record)
    assert any("the bound was changed while it ran" in note for note in record.notes)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [panel.path.name]


def test_the_code_that_it_copies_launches_with_the_settings_of_the_controls(tmp_path: Path) -> None:
    panel = CollocationPanel(two_layer_plan(), folder=tmp_path, max_slowdown=0.03, seconds=12.0)
    panel.settings.background.value = "squeezenet1_1"
    for button, make in zip(panel.code.buttons, (launch_python, launch_command), strict=True):
        button.click()
        assert panel.code.text == make(panel.settings.arguments())
        assert "squeezenet1_1" in panel.code.text
    assert panel.problem == ""
