"""Performs a plan of transfers: packs and sends gradients in backward, and updates parameters before their next use."""

from collections.abc import Callable, Mapping, Sequence

from torch import nn

from deeppool.collectives.ordering import FixedOrder
from deeppool.collectives.patterns import schedule_named
from deeppool.collectives.perform.schedule_group import PendingAllReduce, ScheduleGroup
from deeppool.collectives.schedule import Schedule
from deeppool.errors import RunError
from deeppool.execution.data_parallel.deferred_optimizer import DeferredOptimizer
from deeppool.execution.data_parallel.flat_batch import FlatBatch
from deeppool.execution.data_parallel.fresh_parameters import read_fresh, read_plainly
from deeppool.records.transfer_plan import TransferPlan

SentTransfer = tuple[int, float, float]
"""Position of a transfer in its plan, and when it began and ended on the clock of ``time.perf_counter``."""


class PlannedRun:
    """Transfers and updates of one rank by a plan, from hooks of its model."""

    def __init__(
        self,
        plan: TransferPlan,
        model: nn.Module,
        uses: Mapping[nn.Module, Sequence[nn.Parameter]],
        group: ScheduleGroup,
        optimizer: DeferredOptimizer,
        per_node: int,
    ) -> None:
        """Adds hooks to the model.

        Args:
            plan: a second transfer of the same gradients is the second half of the first, and is sent after backward.
            model: the model that trains.
            uses: modules, and the parameters that must be up to date before their forwards.
            group: ranks that sum the gradients; they make the same calls in the same order.
            optimizer: updates the parameters.
            per_node: ranks of a node.
        """
        self._group, self._optimizer = group, optimizer
        self.accumulates = False
        """Whether gradients that become ready belong to a later backward's sum."""
        self.issued: list[int] = []
        """Positions in the plan of the transfers of the last backward, in the order in which they were sent."""
        self.finished: list[SentTransfer] = []
        """Transfers since the last :meth:`send_rest`, in the order in which they were awaited."""
        names = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._names = {each: name for name, each in names.items()}
        self._schedules = [schedule_named(each.pattern, len(each.ranks), per_node) for each in plan.transfers]
        self._batches: dict[int, FlatBatch] = {}
        """Batches by the position of their first transfer, in the order in which these are sent."""
        first: dict[tuple[str, ...], int] = {}
        self._second: list[tuple[int, int]] = []
        """Positions of second halves, and of the transfers that they complete."""
        for position, transfer in enumerate(plan.transfers):
            if transfer.gradients in first:
                self._second.append((position, first[transfer.gradients]))
            else:
                first[transfer.gradients] = position
                self._batches[position] = FlatBatch([names[name] for name in transfer.gradients])
        self._batch_of = {each: at for at, batch in self._batches.items() for each in batch.parameters}
        self._sent: dict[int, list[tuple[int, PendingAllReduce]]] = {}
        """Batches of the backward that no step has followed yet, and their transfers."""
        self._pending: dict[int, list[tuple[int, PendingAllReduce]]] = {}
        """Batches whose update is due."""
        self._versions: dict[nn.Parameter, int] = {}
        """Changes of the parameters when their update was due."""
        self._begin()
        self._hooks = [each.register_post_accumulate_grad_hook(self._gradient_ready) for each in self._batch_of]
        # Before other hooks of a module, as those of torch.nn.utils.weight_norm compute with its parameters.
        self._hooks += [
            module.register_forward_pre_hook(
                self._completes(sorted({self._batch_of[each] for each in parameters})), prepend=True
            )
            for module, parameters in uses.items()
        ]
        self._modules = [*uses]
        read_fresh(self._modules, self._before_read)

    def send_rest(self) -> None:
        """Sends what the backward has left: batches without all gradients, and second halves."""
        for at in self._batches:
            if self._missing[at]:
                self._order.ready(at)
        self._order.finish()
        self.finished = []
        for position, at in self._second:
            self._send(position, at, self._schedules[position])
        self._pending, self._sent = self._sent, {}
        self._versions = {each: each._version for each in self._batch_of}
        self._begin()

    def sum_all(self) -> None:
        """Sends the rest, and gives the parameters their mean gradients; nothing is under way then."""
        self.send_rest()
        for at in list(self._pending):
            self._await(at)

    def complete(self) -> None:
        """Completes the update that is under way."""
        for at in list(self._pending):
            self._update(at)

    def transfer_alone(self) -> None:
        """Performs all transfers, of zeros, while nothing else is under way."""
        second = dict(self._second)
        for batch in self._batches.values():
            batch.flat.zero_()
        under_way = [
            self._group.all_reduce(self._batches[second.get(position, position)].flat, schedule)
            for position, schedule in enumerate(self._schedules)
        ]
        for work in under_way:
            work.wait()

    def close(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        read_plainly(self._modules)

    def _begin(self) -> None:
        """Expects the gradients of the next backward."""
        self._missing = {at: len(batch.parameters) for at, batch in self._batches.items()}
        self._order = FixedOrder(list(self._batches), self._start)

    def _gradient_ready(self, parameter: nn.Parameter) -> None:
        at = self._batch_of[parameter]
        if at in self._pending:
            # The update would overwrite the gradient by the mean that it awaits.
            raise RunError(
                f"'{self._names[parameter]}' was read before its last update, which its own module completes (read it "
                "as an attribute of its module, or call drain() before)"
            )
        if self.accumulates:
            return
        if not self._missing[at]:
            raise RunError("two backwards without a step between them (run all but the last one in no_sync())")
        self._missing[at] -= 1
        if not self._missing[at]:
            self._order.ready(at)

    def _start(self, at: int) -> None:
        """Sends a batch, after its last update if no forward has used its parameters since."""
        self._update(at)
        if not self._sent:
            self.issued = []
        self._batches[at].pack()
        self._sent[at] = []
        self._send(at, at, self._schedules[at])

    def _send(self, position: int, at: int, schedule: Schedule | None) -> None:
        self.issued.append(position)
        self._sent[at].append((position, self._group.all_reduce(self._batches[at].flat, schedule)))

    def _completes(self, batches: Sequence[int]) -> Callable[..., None]:
        """Returns a hook that updates the parameters of some batches."""

        def before_forward(*_: object) -> None:
            for at in batches:
                self._update(at)

        return before_forward

    def _before_read(self, parameter: nn.Parameter) -> None:
        if (at := self._batch_of.get(parameter)) is not None:
            self._update(at)

    def _update(self, at: int) -> None:
        if at not in self._pending:
            return
        for parameter in self._batches[at].parameters:
            if parameter._version != self._versions[parameter]:
                raise RunError(
                    f"'{self._names[parameter]}' was changed before its last update, which is under way after step() "
                    "(call drain() before code that changes parameters)"
                )
        self._await(at)
        self._optimizer.update(self._batches[at].parameters)

    def _await(self, at: int) -> None:
        for position, work in self._pending.pop(at):
            self.finished.append((position, *work.wait()))
        self._batches[at].unpack(len(self._group.ranks))
