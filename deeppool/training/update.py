"""Updates parameters from summed gradients, equally on every rank that holds them.

Where no rank holds all gradients, the square of their norm is summed over ranks: each parameter's first owner
contributes. The same number shows whether any gradient is infinite or NaN.
"""

import math
from collections.abc import Callable, Collection, Sequence

import torch

from deeppool.training.training_job import Training


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


class Update:
    """A process's optimizer, learning-rate schedule, gradient clipping and loss scale."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        training: Training,
        device: torch.device,
        *,
        counted: Sequence[torch.nn.Parameter],
        total: Callable[[torch.Tensor], None],
        scaled: bool,
    ) -> None:
        """Creates the optimizer.

        Args:
            parameters: the parameters of this process, with their names.
            training: the rule.
            device: device of the norm; a rank may have no parameters.
            counted: parameters whose gradients this process adds to the norm.
            total: replaces a tensor by its sum over all ranks.
            scaled: whether the loss is scaled, as fp16 needs it.
        """
        self._device, self._total = device, total
        # A rank that the plan gives no layer with parameters has nothing to update.
        self.optimizer = training.optimizer(list(parameters)) if parameters else None
        self.schedule = training.schedule(self.optimizer) if training.schedule and self.optimizer else None
        self.scale = LossScale(enabled=scaled)
        self._clip_norm = training.clip_norm
        self.parameters = [parameter for _, parameter in parameters]
        """Those of this process, in the order of the model."""
        self._counted = counted
        self._waiting: set[torch.nn.Parameter] = set()
        """Parameters left in the update in progress; empty between updates."""
        self._finite = True
        """Whether all gradients of the update in progress are finite, if that is known."""

    @property
    def needs_norm(self) -> bool:
        """Whether an update needs the norm of all gradients, so that none may begin before all are summed."""
        return self._clip_norm is not None or self.scale.enabled

    def step(self, chosen: Collection[torch.nn.Parameter] | None = None) -> None:
        """Updates parameters, and clears their gradients.

        Ranks that share parameters make the same calls; where :attr:`needs_norm`, all ranks begin an update together.

        Args:
            chosen: the parameters, each once per update. Default: all that are left of the update.
        """
        if not self._waiting:
            self._waiting = set(self.parameters)
            self._finite = self._scale_and_clip()
        now = self._waiting if chosen is None else self._waiting.intersection(chosen)
        if self.optimizer is not None and now:
            # An optimizer leaves out what has no gradient.
            later = [(parameter, parameter.grad) for parameter in self._waiting - now]
            for parameter, _ in later:
                parameter.grad = None
            if self._finite or not self.scale.enabled:
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            for parameter, gradient in later:
                parameter.grad = gradient
        self._waiting = self._waiting - now
        if not self._waiting:
            if self.schedule is not None and (self._finite or not self.scale.enabled):
                self.schedule.step()
            self.scale.update(finite=self._finite)

    def _scale_and_clip(self) -> bool:
        """Removes the loss scale from all gradients and clips them; returns whether their norm is finite."""
        if not self.needs_norm:
            return True
        norm = self._norm()
        if not math.isfinite(norm):
            return False
        # The small number is torch's own guard in clip_grad_norm_.
        clip = 1.0 if self._clip_norm is None else min(1.0, self._clip_norm / (norm + 1e-6))
        self._multiply(clip / self.scale.factor)
        return True

    def _norm(self) -> float:
        """Returns the norm of the gradients of all ranks without the loss's scale; inf or nan if one gradient is."""
        # torch.nn.utils.get_total_norm sums in the gradients' type, in which scaled gradients may overflow.
        gradients = _gradients(self._counted)
        norms = torch._foreach_norm(gradients, dtype=torch.float64) if gradients else ()
        total = torch.stack([torch.zeros((), dtype=torch.float64, device=self._device), *norms]).square().sum()
        self._total(total)
        return math.sqrt(float(total)) / self.scale.factor if total >= 0 else math.nan

    def _multiply(self, factor: float) -> None:
        gradients = _gradients(self.parameters)
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)


def _gradients(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
