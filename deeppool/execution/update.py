"""Updates parameters from summed gradients, equally on every rank that holds them.

No rank holds all gradients, so the square of their norm is all-reduced: each parameter's first owner contributes.
The same number shows whether any gradient is infinite or NaN.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from deeppool.execution.communicator import Communicator
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
    """One rank's optimizer, learning-rate schedule, gradient clipping and loss scale."""

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        owners: Mapping[str, tuple[int, ...]],
        communicator: Communicator,
        training: Training,
        device: torch.device,
        *,
        scaled: bool,
    ) -> None:
        """Creates the optimizer of the parameters that this rank computes with.

        Args:
            parameters: parameters of the model, by name.
            owners: per name the ranks that hold its summed gradient, ascending.
            communicator: all ranks.
            training: the rule.
            device: device of the all-reduced norm; a rank may have no parameters.
            scaled: whether the loss is scaled, as fp16 needs it.
        """
        self._communicator, self._device = communicator, device
        mine = [(name, parameters[name]) for name, ranks in owners.items() if communicator.rank in ranks]
        # A rank that the plan gives no layer with parameters has nothing to update.
        self.optimizer = training.optimizer(mine) if mine else None
        self.schedule = training.schedule(self.optimizer) if training.schedule and self.optimizer else None
        self.scale = LossScale(enabled=scaled)
        self._clip_norm = training.clip_norm
        self._parameters = [parameter for _, parameter in mine]
        self._counted = [parameters[name] for name, ranks in owners.items() if ranks[0] == communicator.rank]

    def step(self) -> None:
        """Scales and clips gradients and takes a step; all ranks call it together."""
        norm = self._norm() if self._clip_norm is not None or self.scale.enabled else None
        finite = norm is None or math.isfinite(norm)
        if norm is not None and finite:
            # The small number is torch's own guard in clip_grad_norm_.
            clip = 1.0 if self._clip_norm is None else min(1.0, self._clip_norm / (norm + 1e-6))
            self._multiply(clip / self.scale.factor)
        if self.optimizer is not None:
            if finite or not self.scale.enabled:
                self.optimizer.step()
                if self.schedule is not None:
                    self.schedule.step()
            self.optimizer.zero_grad(set_to_none=True)
        self.scale.update(finite=finite)

    def _norm(self) -> float:
        """Returns the norm of the gradients of all ranks without the loss's scale; inf or nan if one gradient is."""
        # torch.nn.utils.get_total_norm sums in the gradients' type, in which scaled gradients may overflow.
        gradients = _gradients(self._counted)
        norms = torch._foreach_norm(gradients, dtype=torch.float64) if gradients else ()
        total = torch.stack([torch.zeros((), dtype=torch.float64, device=self._device), *norms]).square().sum()
        self._communicator.all_reduce(total).wait()
        return math.sqrt(float(total)) / self.scale.factor if total >= 0 else math.nan

    def _multiply(self, factor: float) -> None:
        gradients = _gradients(self._parameters)
        if factor != 1.0 and gradients:
            torch._foreach_mul_(gradients, factor)


def _gradients(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]
