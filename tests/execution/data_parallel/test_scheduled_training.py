"""A wrapped model trains as one process on the samples of all ranks, though updates end in the next forward."""

import copy
import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel

from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.device.cpu import CpuDevice
from deeppool.errors import RunError
from deeppool.execution.data_parallel.scheduled_training import ScheduledTraining
from tests.execution.data_parallel.wrapped_rank import CASES, CLUSTER, PREDICTED, equal, prepare, run
from tests.ranks import run_ranks

EVERY = [case.name for case in CASES]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    "counts",
    [
        {2: ["caramel", "dear", "trying"], 3: EVERY, 4: ["trying-adamw", "adamw"], 8: ["caramel"]},
        pytest.param({2: EVERY, 4: EVERY, 5: EVERY, 8: EVERY}, marks=pytest.mark.stress),
    ],
)
def test_parameters_are_those_of_one_process_on_any_number_of_ranks(counts: dict, tmp_path: Path) -> None:
    """In every rank: values, evaluation, checkpoint, and versions that forwards read; see wrapped_rank.train."""
    run_ranks(run, (8, counts, str(tmp_path)), 8, prepare)
    answers = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(8)]
    for count, names in counts.items():
        for case in (case for case in CASES if case.name in names):
            found = [answer[f"{case.name} of {count}"] for answer in answers[:count]]
            # Branches run in another order on every other rank, and their gradients are ready in another order.
            assert len({answer["plan"] for answer in found}) == 1
            logs = [answer["issued"] for answer in found]
            assert all(log == logs[0] for log in logs)
            plan = json.loads(found[0]["plan"])
            expected = list(range(len(plan["transfers"])))
            planned = case.updates - 1 - case.method.measured_updates
            assert len(logs[0]) == planned
            if not case.method.tried_updates:
                assert logs[0] == [expected] * planned
                # Without clipping an update is under way when step returns.
                assert all(bool(left) == (case.clip_norm is None) for left in found[0]["unfinished"])
                assert "library" not in {transfer["pattern"] for transfer in plan["transfers"]}
                continue
            # Plans of other transfers were performed before, and the kept one at the end.
            assert logs[0][-3:] == [expected] * 3
            assert len({len(log) for log in logs[0]}) > 1
            tried = [each["seconds"] for each in plan["tried"]]
            assert 4 <= len(tried) <= 7
            # Those of the last round have had a turn in each.
            assert sorted(map(len, tried))[-2:] == [len(tried[0])] * 2
            assert len(plan["transfers"]) == plan["tried"][0]["transfers"]
            # Between two plans, and only there, nothing is under way.
            if case.clip_norm is None:
                assert {bool(left) for left in found[0]["unfinished"]} == {False, True}
                assert all(found[0]["unfinished"][-3:])


class Alternating(nn.Module):
    """Calls one of its modules in every forward, and the other one if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(2, 1), nn.Linear(2, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.5)

    def forward(self, values: torch.Tensor, both: bool) -> torch.Tensor:
        found = self.always(values)
        return found + self.sometimes(values) if both else found


@pytest.fixture
def group(tmp_path: Path):
    dist.init_process_group("gloo", init_method=(tmp_path / "rendezvous").as_uri(), rank=0, world_size=1)
    yield ScheduleGroup(CpuDevice(), range(1))
    dist.destroy_process_group()


def test_what_a_forward_leaves_out_is_updated_by_the_settings_of_its_own_step(group: ScheduleGroup) -> None:
    """The learning rate is halved after each iteration."""
    plain, planned = Alternating(), Alternating()
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in (plain, planned)]
    with ScheduledTraining(planned, optimizers[1], PREDICTED, CLUSTER, group) as training:
        for update in range(8):
            for model in (plain, planned):
                model(torch.ones(2), update % 2 == 0).square().sum().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            training.step()
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] *= 0.5
    for one, other in zip(plain.parameters(), planned.parameters(), strict=True):
        torch.testing.assert_close(one, other)


class Normed(nn.Linear):
    """Computes its weight before each forward, as ``torch.nn.utils.weight_norm`` does."""

    def __init__(self) -> None:
        super().__init__(2, 1)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.fill_(0.5)
        self.direction = self.weight
        del self.weight
        self.register_forward_pre_hook(Normed.compute)

    def compute(self, inputs: object) -> None:
        self.weight = self.direction / self.direction.norm()


def test_parameters_that_a_hook_of_their_module_reads_are_updated_before_it(group: ScheduleGroup) -> None:
    plain, planned = Normed(), Normed()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, planned)]
    with ScheduledTraining(planned, optimizers[1], PREDICTED, CLUSTER, group) as training:
        for _ in range(5):
            for model in (plain, planned):
                model(torch.tensor([1.0, 2.0])).square().sum().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            training.step()
    torch.testing.assert_close(plain.direction, planned.direction)


def test_a_timeline_is_of_two_iterations_in_a_row(group: ScheduleGroup) -> None:
    """One whose gradients are summed before its step, as for their norm, is not shown: its transfers hide nothing."""
    model, shown = Alternating(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ScheduledTraining(model, optimizer, PREDICTED, CLUSTER, group) as training:
        for update in range(9):
            model(torch.ones(2), True).square().sum().backward()
            if update == 6:
                training.clip_grad_norm_(1.0)
            training.step()
            shown.append(training.timeline)
    assert shown[4] != shown[5] != shown[8]
    assert shown[5] == shown[6] == shown[7]


def test_a_step_without_a_forward_of_the_model_itself_is_refused(group: ScheduleGroup) -> None:
    model = Alternating()
    training = ScheduledTraining(model, torch.optim.SGD(model.parameters(), lr=1.0), PREDICTED, CLUSTER, group)
    model.always(torch.ones(2)).sum().backward()
    with pytest.raises(RunError, match=r"a step before the first forward of Alternating .* not its modules"):
        training.step()
    training.close()


class Reading(nn.Module):
    """Reads the weight of one of its modules by itself, and calls it or not."""

    def __init__(self, calls: bool) -> None:
        super().__init__()
        self.calls = calls
        self.own, self.other = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                parameter.fill_(0.1 * number)
        self.held = [self.other.weight]
        self.holds = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = self.own(values)
        weight = self.held[0] if self.holds else self.other.weight
        read = values + weight.sum() + nn.functional.linear(values, weight)
        return self.other(read) if self.calls else read


@pytest.mark.parametrize("calls", [True, False])
def test_a_parameter_that_a_forward_reads_without_its_module_has_its_last_update(
    group: ScheduleGroup, calls: bool
) -> None:
    """Read before its own module, it was one update old."""
    planned = Reading(calls)
    plain = copy.deepcopy(planned)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (plain, planned)]
    with ScheduledTraining(planned, optimizers[1], PREDICTED, CLUSTER, group) as training:
        for _ in range(6):
            losses = [model(torch.ones(2)).square().sum() for model in (plain, planned)]
            torch.testing.assert_close(*losses)
            for loss in losses:
                loss.backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            training.step()
    equal(planned.state_dict(), plain.state_dict())
    assert type(planned.other._parameters) is dict


def test_a_parameter_that_is_read_before_its_update_is_an_error_and_none_after_a_drain(group: ScheduleGroup) -> None:
    """Its gradient was replaced by the mean of the update before, and lost."""
    planned = Reading(calls=True)
    plain = copy.deepcopy(planned)
    models = plain, planned
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    with ScheduledTraining(planned, optimizers[1], PREDICTED, CLUSTER, group) as training:
        for update in range(6):
            for model in models:
                model.calls, model.holds = update < 4, update >= 4
            if update >= 4:
                training.drain()
            for model in models:
                model(torch.ones(2)).square().sum().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            training.step()
        # Also where gradients only accumulate.
        for context in (training.no_sync, nullcontext):
            with (
                context(),
                pytest.raises(RunError, match=r"'other.weight' was read before .* or call drain\(\) before"),
            ):
                planned(torch.ones(2)).square().sum().backward()
    equal(planned.state_dict(), plain.state_dict())


def test_a_copy_of_the_model_has_the_last_update_and_trains_by_itself(group: ScheduleGroup) -> None:
    planned = Reading(calls=True)
    plain = copy.deepcopy(planned)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (plain, planned)]
    with ScheduledTraining(planned, optimizers[1], PREDICTED, CLUSTER, group) as training:
        for _ in range(5):
            for model in (plain, planned):
                model(torch.ones(2)).square().sum().backward()
            optimizers[0].step()
            optimizers[0].zero_grad()
            training.step()
            under_way = training._run is not None and bool(training._run._pending)
            copied = AveragedModel(planned).module
            assert {type(module._parameters) for module in copied.modules()} == {dict}
            equal(copied.state_dict(), plain.state_dict())
        assert under_way


def test_parameters_are_changed_after_their_update_or_not_at_all(group: ScheduleGroup) -> None:
    """An update that was under way was added to what had been loaded or clamped."""
    planned = Reading(calls=True)
    plain = copy.deepcopy(planned)
    first = copy.deepcopy(plain.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (plain, planned)]
    training = ScheduledTraining(planned, optimizers[1], PREDICTED, CLUSTER, group)
    for update in range(7):
        for model in (plain, planned):
            model(torch.ones(2)).square().sum().backward()
        optimizers[0].step()
        optimizers[0].zero_grad()
        training.step()
        for model in (plain, planned):
            if update == 4:
                model.load_state_dict(first)
            if update == 5:
                with torch.no_grad():
                    model.other.weight.clamp_(0.0, 0.1)
    # Of a module alone, too.
    equal(planned.own.state_dict(), plain.own.state_dict())
    planned(torch.ones(2)).square().sum().backward()
    training.step()
    with torch.no_grad():
        for parameter in planned.parameters():
            parameter.clamp_(0.0, 0.1)
    with pytest.raises(RunError, match=r"'.*' was changed before its last update, .* \(call drain\(\) before"):
        planned(torch.ones(2))
    training.close()
