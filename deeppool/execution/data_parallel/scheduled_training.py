"""Data-parallel training of any model and optimizer by a plan of transfers, up to the next forward.

    measured updates   forward, backward, all gradients summed at once, update; the ranks' mean times give the plan
    tried updates      by several plans in turn, of which the fastest on all ranks is kept
    every planned one  backward:      a gradient is ready → its batch is packed and sent, in the plan's order
                       step:          what is left is sent
                       next forward:  before each module the transfers it waits for end, and its parameters are updated;
                      others that read these as its attributes wait for them, too

All ranks do the same in the same order. Training is synchronous SGD on the mean gradient of the ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol, Self

import torch
from torch import nn

from deeppool.base.timeline import Timeline
from deeppool.cluster.cluster import Cluster
from deeppool.collectives.batching import Gradient
from deeppool.collectives.patterns.broadcast_tree import broadcast_tree
from deeppool.collectives.perform.schedule_group import ScheduleGroup
from deeppool.costs.communication import Network, default_model
from deeppool.device.find import device_of
from deeppool.errors import InvalidValueError, RunError
from deeppool.execution.data_parallel.deferred_optimizer import DeferredOptimizer
from deeppool.execution.data_parallel.flat_batch import FlatBatch
from deeppool.execution.data_parallel.iteration_times import IterationTimes, Moments
from deeppool.execution.data_parallel.measured_timeline import measured_timeline
from deeppool.execution.data_parallel.planned_run import PlannedRun, SentTransfer
from deeppool.execution.plan_trial import PlanTrial
from deeppool.records.transfer_plan import PartTimes, TransferPlan


class TransferMethod(Protocol):
    """Rule by which gradients travel."""

    @property
    def measured_updates(self) -> int:
        """Updates to measure before the plan, after a first one that is not."""

    @property
    def tried_updates(self) -> int:
        """Updates to measure by each of several plans in a turn."""

    def plans(self, parts: Sequence[PartTimes], gradients: Sequence[Gradient], network: Network) -> list[TransferPlan]:
        """Plans the transfers of an iteration, in one way or several to try; the same on all ranks."""


class ScheduledTraining:
    """Training of a replica whose gradients travel by a plan of transfers; ``TransferScheduler.wrap`` makes it."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        method: TransferMethod,
        cluster: Cluster,
        group: ScheduleGroup,
    ) -> None:
        """Gives all replicas the parameters and buffers of the group's first rank.

        Args:
            model: this rank's replica.
            optimizer: its optimizer; every rank makes the same one.
            method: plans the transfers.
            cluster: prices them.
            group: all ranks that train; closed with the training.

        Raises:
            InvalidValueError: the optimizer has other parameters than the model, or the cluster too few GPUs.
        """
        self._model, self._optimizer, self._method, self._group = model, optimizer, method, group
        self._deferred = DeferredOptimizer(optimizer)
        self._names = {each: name for name, each in model.named_parameters() if each.requires_grad}
        _check(self._names, self._deferred.parameters, cluster, len(group.ranks))
        self._place = next(iter(self._names)).device
        self._network = Network(cluster, default_model(cluster, self._place.type))
        self._times = IterationTimes(model, device_of(self._place))
        self._broadcast_state()
        self._whole = [FlatBatch(each) for each in _by_type(list(self._names))]
        """Buffers of the measured updates."""
        self.transfers: TransferPlan | None = None
        """Plan of the transfers, once the measured updates are done; others are tried in turn at first."""
        self.updates = 0
        """Updates so far, that under way included."""
        self._measured: list[torch.Tensor] = []
        self._summed = False
        self._run: PlannedRun | None = None
        self._trial: PlanTrial | None = None
        self._before: Moments | None = None
        """Moments of the last iteration by the plan; None if the last one summed its gradients before its step."""
        self._shown: tuple[tuple[Moments, Moments], Sequence[SentTransfer]] | None = None
        owners: list[nn.Module | torch.optim.Optimizer] = [*model.modules(), optimizer]
        self._hooks = [
            hook
            for each in owners
            for hook in (
                each.register_state_dict_pre_hook(lambda *_: self.drain()),
                each.register_load_state_dict_pre_hook(lambda *_: self.drain()),
            )
        ]

    def step(self) -> None:
        """Updates the parameters from the gradients of the last backward, or leaves that to the next forward.

        Raises:
            InvalidValueError: the optimizer trains parameters that did not train at first, or needs the gradients of
                all of them in one step.
            RunError: the model has had no forward.
        """
        if self._times.last.ended is None:
            raise RunError(
                f"a step before the first forward of {type(self._model).__name__} with gradients: in it updates are "
                "measured and completed (call the wrapped model itself, not its modules or other methods)"
            )
        if new := sum(each not in self._names for each in self._deferred.parameters):
            raise InvalidValueError(
                f"{new} parameters train that did not at first, and no transfer is planned for their gradients (wrap "
                "the model again once they train, or let them train from the start)"
            )
        if self._run is None or self._summed:
            self.sum_gradients()
            self._before = None
            self._optimizer.step()
            if self._deferred.clears:
                self._optimizer.zero_grad(set_to_none=True)
        else:
            # The forward before has left what it did not call, whose update is by the settings of its own step.
            self.drain()
            self._deferred.keep_settings()
            before, self._before = self._before, self._times.last
            if before is not None:
                self._shown = (before, self._before), self._run.finished
            self._run.send_rest()
        self._summed = False
        if self._run is None:
            self._measure()
        self.updates += 1
        if self._trial is not None:
            self._trial.count_update(device_of(self._place), self.drain, self._perform)
        elif self.updates > self._method.measured_updates:
            self._plan()

    @property
    def trying(self) -> bool:
        """Whether updates are measured for the plan, or plans are tried; the same on all ranks."""
        return self._trial is None or self._trial.running

    def keep_gradients(self) -> None:
        """Leaves it to the caller to clear gradients: before the next backward, after :meth:`drain`."""
        self._deferred.clears = False

    def drain(self) -> None:
        """Completes the update that is under way; calls no other rank."""
        if self._run is not None:
            self._run.complete()

    def transfer_alone(self) -> None:
        """Performs the planned transfers while nothing computes, to measure them; every rank calls it.

        Raises:
            RunError: there is no plan yet.
        """
        if self._run is None:
            raise RunError("there is no plan of transfers yet (it is made after the measured updates)")
        self.drain()
        self._run.transfer_alone()

    @property
    def timeline(self) -> Timeline | None:
        """Measured last complete iteration of this rank: a backward, its transfers and the next forward.

        None before there is one by the plan; one whose gradients are clipped does not count, as it hides no transfer.
        """
        if self.transfers is None or self._shown is None:
            return None
        return measured_timeline(self.transfers, self._times, self._parts, self._owned, *self._shown)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Adds the gradients of the backwards in this block to those of the next one outside of it."""
        if self._run is None:
            yield
            return
        self._run.accumulates = True
        try:
            yield
        finally:
            self._run.accumulates = False

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clips the mean gradients between backward and :meth:`step`, once all transfers have ended.

        Returns:
            The norm of all gradients before, as ``torch.nn.utils.clip_grad_norm_``.
        """
        self.sum_gradients()
        return torch.nn.utils.clip_grad_norm_(list(self._names), max_norm)

    def close(self) -> None:
        """Removes the hooks, and ends the thread and the process group; every rank calls it."""
        self._times.close()
        for hook in self._hooks:
            hook.remove()
        if self._run is not None:
            self._run.close()
        self._group.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.drain()
        self.close()

    def sum_gradients(self) -> None:
        """Waits until the parameters have the mean gradients of all ranks, between backward and :meth:`step`."""
        if self._summed:
            return
        self._summed = True
        if self._run is not None:
            self._run.sum_all()
            return
        for batch in self._whole:
            batch.pack()
        for work in [self._group.all_reduce(batch.flat, None) for batch in self._whole]:
            work.wait()
        for batch in self._whole:
            batch.unpack(len(self._group.ranks))

    def _measure(self) -> None:
        """Adds the times of the last iteration; the first one shows the order of the parts."""
        if self.updates == 0:
            order = torch.tensor([len(self._times.last.used), *self._times.order()], device=self._place)
            self._broadcast(order)
            called, *positions = order.tolist()
            self._parts = [self._times.modules[position] for position in positions]
            self._uncalled = self._parts[: len(self._parts) - called]
            self._owned = _owned(self._parts)
            return
        last = self._times.last
        passes = self._times.forwards(last, self._parts), self._times.backwards(last, self._owned)
        self._measured.append(torch.tensor([[end - start for start, end in each] for each in passes]))

    def _plan(self) -> None:
        """Makes the same plan on all ranks, of the same mean times."""
        means = torch.stack(self._measured).mean(0)
        times = torch.tensor(self._mean(means.flatten().tolist())).view_as(means)
        labels = {module: name for name, module in self._model.named_modules()}
        parts = [
            PartTimes(labels[module] or type(module).__name__, forward, backward, self._group.ranks)
            for module, forward, backward in zip(self._parts, *times.tolist(), strict=True)
        ]
        gradients = [
            Gradient(self._names[parameter], parameter.nbytes, index, self._group.ranks, str(parameter.dtype))
            for index in reversed(range(len(parts)))
            for parameter in reversed(self._owned[index])
        ]
        self._whole = []
        plans = self._method.plans(parts, gradients, self._network)
        self._trial = PlanTrial(plans, self._method.tried_updates, self._mean)
        self._perform(self._trial.plan)

    def _mean(self, numbers: list[float]) -> list[float]:
        """Returns the mean over all ranks, which get the same bits."""
        tensor = torch.tensor(numbers, device=self._place) / len(self._group.ranks)
        self._group.all_reduce(tensor, None).wait()
        found: list[float] = tensor.tolist()
        return found

    def _perform(self, plan: TransferPlan) -> None:
        """Replaces the plan of the transfers, of which none is under way."""
        if self._run is not None:
            self._run.close()
        self.transfers, self._before, self._shown = plan, None, None
        per_node = self._network.cluster.gpus_per_node
        self._run = PlannedRun(plan, self._model, self._uses(), self._group, self._deferred, per_node)
        self._times.come_first()

    def _uses(self) -> Mapping[nn.Module, Sequence[nn.Parameter]]:
        """Returns what must be up to date before the forward of each module; others read what none of them calls."""
        uses = {module: _trained(module) for module in self._times.modules}
        early = [parameter for module in self._uncalled for parameter in _trained(module)]
        return {**uses, self._model: [*early, *uses.get(self._model, [])]}

    def _broadcast_state(self) -> None:
        for tensor in [*self._model.parameters(), *self._model.buffers()]:
            dense = tensor.detach().contiguous()
            self._broadcast(dense)
            tensor.detach().copy_(dense)

    def _broadcast(self, tensor: torch.Tensor) -> None:
        """Replaces a tensor by that of the first rank."""
        self._group.all_reduce(tensor, broadcast_tree(len(self._group.ranks))).wait()


def _check(names: Mapping[nn.Parameter, str], trained: Sequence[nn.Parameter], cluster: Cluster, ranks: int) -> None:
    if set(names) != set(trained):
        missing = [names[each] for each in set(names).difference(trained)]
        raise InvalidValueError(
            f"the optimizer trains {len(set(trained).difference(names))} parameters that the model has not, and leaves "
            f"out {len(missing)} of it that require gradients{', such as ' + min(missing) if missing else ''} (give it "
            "all of them, and freeze the others: requires_grad_(False))"
        )
    if cluster.gpus < ranks:
        raise InvalidValueError(
            f"cluster '{cluster.name}' has {cluster.gpus} GPUs, the training {ranks} ranks (measure the network "
            "between as many)"
        )


def _trained(module: nn.Module) -> list[nn.Parameter]:
    """Returns the trainable parameters of a module itself."""
    return [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]


def _owned(parts: Sequence[nn.Module]) -> list[list[nn.Parameter]]:
    """Returns the parameters of each part; a tied one belongs to the first part that has it."""
    first: dict[nn.Parameter, int] = {}
    for index, part in enumerate(parts):
        for parameter in _trained(part):
            first.setdefault(parameter, index)
    return [[each for each in _trained(part) if first[each] == index] for index, part in enumerate(parts)]


def _by_type(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    types = dict.fromkeys(parameter.dtype for parameter in parameters)
    return [[each for each in parameters if each.dtype == dtype] for dtype in types]
