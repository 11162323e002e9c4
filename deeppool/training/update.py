"""Updates parameters from summed gradients, equally on every rank that holds them.

Where no rank holds all gradients, the square of their norm is summed over ranks: each parameter's first owner
contributes. The same number shows whether any gradient is infinite or NaN.

Norm and factors stay on the device, so that the host goes on to launch the next iteration. With scaled losses an update
is skipped if a gradient is not finite. The fused optimizers of torch see to that on the device, and the host reads it
before the next backward, for which it needs the scale. For any other optimizer the host waits in every update.
"""

import inspect
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from deeppool.errors import InvalidValueError
from deeppool.training.bucket import SPARSE
from deeppool.training.group_state import StepsOfSome
from deeppool.training.training_job import Training

if TYPE_CHECKING:
    from torch.optim.lr_scheduler import LRScheduler


class LossScale:
    """The factor that keeps fp16 gradients from vanishing, by the rule and the constants of ``torch.amp.GradScaler``.

    Halved when a gradient is infinite or NaN, and that update is skipped; doubled after 2,000 updates in a row.
    (Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2)
    """

    INITIAL = 2.0**16
    GROWTH_INTERVAL = 2000

    def __init__(self, *, enabled: bool) -> None:
        """Starts with the initial factor; a disabled scale stays at 1."""
        self.enabled = enabled
        self.factor = self.INITIAL if enabled else 1.0
        self.good = 0
        """Updates since the factor last changed."""

    def update(self, *, finite: bool) -> None:
        """Adjusts the factor after an update."""
        if not self.enabled:
            return
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.factor /= 2
        elif self.good == self.GROWTH_INTERVAL:
            self.factor *= 2
            self.good = 0


class UpdateOutcome(NamedTuple):
    """What became of an update."""

    learning_rate: float | None
    """That of the first parameter group, before the schedule's step for the update; None: there is none."""
    skipped: bool
    """Whether it was skipped because the loss scale was too high."""
    stuck: bool
    """Whether it was skipped though no smaller scale would help: gradients are infinite or NaN."""


class Update:
    """A process's optimizer, learning-rate schedule, gradient clipping and loss scale."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        training: Training,
        place: torch.device,
        fetch: Callable[[torch.Tensor], Callable[[], torch.Tensor]],
        *,
        trained: Sequence[tuple[str, torch.nn.Parameter]] | None = None,
        counted: Sequence[torch.nn.Parameter],
        total: Callable[[torch.Tensor], None],
        scaled: bool,
    ) -> None:
        """Creates the optimizer.

        Args:
            parameters: the parameters of this process, with their names.
            training: the rule.
            place: device of the norm; a rank may have no parameters.
            fetch: :meth:`deeppool.device.protocol.Device.fetch` of that device.
            trained: those of the whole model, of which the optimizer is made. Default: those of this process.
            counted: parameters whose gradients this process adds to the norm.
            total: replaces a tensor by its sum over all ranks.
            scaled: whether the loss is scaled, as fp16 needs it.
        """
        self._place, self._fetch, self._total = place, fetch, total
        # A rank that the plan gives no layer with parameters has nothing to update.
        self.optimizer = _make_optimizer(training, parameters, trained or parameters) if parameters else None
        self._steps = None if self.optimizer is None else StepsOfSome(self.optimizer)
        self.complete = trained is None or len(trained) == len(parameters)
        """Whether a whole update has the gradients of all parameters of the model."""
        self._schedule = _make_schedule(training, self.optimizer)
        self._scale = LossScale(enabled=scaled)
        self.on_end: Callable[[UpdateOutcome], object] | None = None
        """Called with the outcome of each update, in their order, once the host knows it."""
        self._clip_norm = training.clip_norm
        self.parameters = [parameter for _, parameter in parameters]
        """Those of this process, in the order of the model."""
        self._counted = counted
        self._waiting: set[torch.nn.Parameter] = set()
        """Parameters left in the update in progress; empty between updates."""
        self._in_parts = False
        """Whether the update in progress has begun with the gradients of some parameters."""
        self._made = True
        """Whether the update in progress is made, or the optimizer is left to decide."""
        self._made_before = False
        """Whether an update was made before."""
        self._outcome: Callable[[], torch.Tensor] | None = None
        """Returns, from the device, whether the last update was made; None: the host knows."""

    @property
    def needs_norm(self) -> bool:
        """Whether an update needs the norm of all gradients, so that none may begin before all are summed."""
        return self._clip_norm is not None or self._scale.enabled

    @property
    def scale(self) -> LossScale:
        """Scale of the next loss; waits for the last update."""
        self.decide()
        return self._scale

    @property
    def schedule(self) -> "LRScheduler | None":
        """Schedule of the learning rate; waits for the last update."""
        self.decide()
        return self._schedule

    @property
    def decided(self) -> bool:
        """Whether the host knows if the last update was made or skipped."""
        return self._outcome is None

    def decide(self) -> None:
        """Waits until the host knows if the last update was made or skipped; adjusts scale and schedule."""
        if self._outcome is not None and not self._waiting:
            outcome, self._outcome = self._outcome, None
            self.end(made=bool(outcome()))

    def step(self, chosen: Collection[torch.nn.Parameter] | None = None) -> None:
        """Updates parameters, and clears their gradients.

        Ranks that share parameters make the same calls; where :attr:`needs_norm`, all ranks begin an update together.

        Args:
            chosen: the parameters, each once per update. Default: all that are left of the update.

        Raises:
            InvalidValueError: the optimizer needs the gradients of all parameters in one step, and has those of some.
        """
        if not self._waiting:
            self.decide()
            self._waiting = set(self.parameters)
            self._in_parts = False
            self._begin()
        now = self._waiting if chosen is None else self._waiting.intersection(chosen)
        if self.optimizer is not None and now:
            if self._made:
                assert self._steps is not None
                if self.complete and len(now) == len(self.parameters):
                    self.optimizer.step()
                else:
                    if not self._in_parts:
                        self._steps.begin()
                        self._in_parts = True
                    self._steps.step(now)
            # Of those that the user's optimizer leaves out, too.
            for parameter in now:
                parameter.grad = None
        self._waiting = self._waiting - now
        if not self._waiting and self.decided:
            self.end(made=self._made)

    def end(self, *, made: bool = True) -> None:
        """Ends an update, made or skipped: :meth:`step` does so; others call it who step the optimizer themselves."""
        self._made_before = self._made_before or made
        if self.on_end is not None:
            # Below 1 it is no overflow that a smaller scale could cure.
            curable = self._scale.factor >= 2
            self.on_end(UpdateOutcome(self._learning_rate(), not made and curable, not made and not curable))
        if self._schedule is not None and made:
            self._schedule.step()
        self._scale.update(finite=made)

    def _begin(self) -> None:
        """Removes the loss scale from all gradients, clips them, and finds out whether the update is made."""
        self._made = True
        if not self.needs_norm:
            return
        finite = self._scale_and_clip()
        if not self._scale.enabled:
            return
        # torch's fused SGD leaves its momentum undefined where it skips the first update.
        if self._made_before and _skips_by_itself(self.optimizer):
            self.optimizer.found_inf = finite.logical_not().float()  # type: ignore[union-attr]  # read by its step
            self._outcome = self._fetch(finite)
        else:
            self._made = bool(finite)

    def _learning_rate(self) -> float | None:
        rate = None if self.optimizer is None else self.optimizer.param_groups[0].get("lr")
        return None if rate is None else float(rate)

    def _scale_and_clip(self) -> torch.Tensor:
        """Removes the loss scale from all gradients and clips them, if their norm is finite; returns whether it is."""
        total = self._square_of_norm()
        finite = total.isfinite()
        multiplier = torch.ones_like(total) / self._scale.factor
        if self._clip_norm is not None:
            # The small number is torch's own guard in clip_grad_norm_.
            norm = total.sqrt() / self._scale.factor
            multiplier = multiplier * (self._clip_norm / (norm + 1e-6)).clamp(max=1.0)
        if gradients := _gradients(self.parameters):
            # A GPU multiplies many tensors in one kernel if the number has their type; 16 bits would round it.
            precise = torch.promote_types(gradients[0].dtype.to_real(), torch.float32)
            torch._foreach_mul_(gradients, torch.where(finite, multiplier, 1.0).to(precise))
        return finite

    def _square_of_norm(self) -> torch.Tensor:
        """Returns the square of the norm of the scaled gradients of all ranks; inf or nan if one gradient is."""
        # torch.nn.utils.get_total_norm sums in the gradients' type, in which scaled gradients may overflow.
        gradients = _gradients(self._counted)
        if any(gradient.is_sparse for gradient in gradients):
            raise InvalidValueError(f"clipping and the loss scale of fp16 need the norm of all gradients, and {SPARSE}")
        # The norm of a complex number is that of its two parts.
        gradients = [torch.view_as_real(each) if each.is_complex() else each for each in gradients]
        norms = torch._foreach_norm(gradients, dtype=torch.float64) if gradients else ()
        total = torch.stack([torch.zeros((), dtype=torch.float64, device=self._place), *norms]).square().sum()
        self._total(total)
        return total


def _make_optimizer(
    training: Training,
    parameters: Sequence[tuple[str, torch.nn.Parameter]],
    trained: Sequence[tuple[str, torch.nn.Parameter]],
) -> torch.optim.Optimizer:
    """Makes the optimizer of all parameters of the model, and leaves it those of this process.

    It has the same groups on every rank of every plan, so a schedule's numbers, one per group, fit all of them.
    """
    optimizer = training.optimizer(list(trained))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidValueError(
            f"optimizer returned a {type(optimizer).__name__}, expected a torch.optim.Optimizer (return it)"
        )
    if _required(optimizer.step):
        raise InvalidValueError(
            f"a step of {type(optimizer).__name__} computes the loss again, which an update on several ranks cannot "
            "(choose an optimizer whose step takes no closure)"
        )
    given = {parameter for _, parameter in trained}
    if given.isdisjoint(parameter for group in optimizer.param_groups for parameter in group["params"]):
        raise InvalidValueError(
            f"optimizer returned a {type(optimizer).__name__} of none of the parameters that it was given (each "
            "process has a copy of the model: make it of these, as in lambda parameters: torch.optim.AdamW(parameters))"
        )
    own = {parameter for _, parameter in parameters}
    for group in optimizer.param_groups:
        kept = [parameter in own for parameter in group["params"]]
        for key in {"params", "param_names"} & set(group):
            group[key][:] = itertools.compress(group[key], kept)
    for _, parameter in trained:
        if parameter not in own:
            optimizer.state.pop(parameter, None)
    return optimizer


def _make_schedule(training: Training, optimizer: torch.optim.Optimizer | None) -> "LRScheduler | None":
    if training.schedule is None or optimizer is None:
        return None
    schedule = training.schedule(optimizer)
    if schedule is None:
        raise InvalidValueError("schedule returned None, expected a learning-rate schedule of torch (return it)")
    if needed := _required(schedule.step):
        raise InvalidValueError(
            f"a step of {type(schedule).__name__} needs {', '.join(needed)}, and that of a training has none "
            "(choose a schedule by the number of the update, such as CosineAnnealingLR)"
        )
    return schedule


def _required(function: Callable[..., object]) -> list[str]:
    """Returns the names of the arguments of a method without a default."""
    parameters = inspect.signature(function).parameters.values()
    return [
        each.name
        for each in parameters
        # A schedule that was made with its optimizer has replaced the method by a function of it.
        if each.default is each.empty
        and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        and each.name != "self"
    ]


def _skips_by_itself(optimizer: torch.optim.Optimizer | None) -> bool:
    """Whether it is one of torch's fused optimizers, whose steps read ``found_inf`` from :class:`torch.amp.GradScaler`.

    Custom optimizers with the same mark may expect the scaler itself.
    """
    if optimizer is None or not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    return all(group.get("fused") for group in optimizer.param_groups)


def _gradients(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
