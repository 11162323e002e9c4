"""One rank that trains by a Trainer of Lightning, with its own DDP and with transfers; see test_lightning.py."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

import deeppool as dp
from tests.adapters.ranks import RANKS, SAMPLES, STEPS, TRYING, Net, dataset, join, preload

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"gradient_clip_val": 0.1},
    "accumulated": {"accumulate_grad_batches": 2},
    "read in steps": {"accumulate_grad_batches": 2, "limit_val_batches": 0},
    "read in epochs": {"limit_val_batches": 0},
    "read by schedule": {"limit_val_batches": 0},
    "read in zero_grad": {"accumulate_grad_batches": 2, "limit_val_batches": 0},
    "fp16": {},
}


def prepare(folder: Path, port: int) -> None:
    preload("deeppool.adapters.lightning", "lightning.pytorch")


def run(rank: int, folder: Path, port: int) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    join(rank, port)
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins import MixedPrecision
    from lightning.pytorch.strategies import DDPStrategy

    from deeppool.adapters.lightning import TransferStrategy
    from deeppool.errors import InvalidValueError

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.losses, self.checked = Net(rank), [], []

        def training_step(self, batch: dict, index: int) -> torch.Tensor:
            loss = self.net(**batch)["loss"]
            self.losses.append(float(loss))
            return loss

        def validation_step(self, batch: dict, index: int) -> None:
            self.checked.append(float(self.net(**batch)["loss"]))

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.5)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2)]

    class ScheduledModule(Module):
        """Reads parameters where it steps its schedule of learning rates, in every update."""

        def __init__(self) -> None:
            super().__init__()
            self.read: list[float] = []

        def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
            self.read.append(sum(float(each.norm()) for each in self.parameters()))
            scheduler.step()

        def configure_optimizers(self) -> Any:
            (optimizer,), _ = super().configure_optimizers()
            schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    class Reader(Callback):
        """Reads gradients and parameters where users' callbacks do."""

        def __init__(self) -> None:
            self.read: list[float] = []

        def on_after_backward(self, trainer: Any, module: Any) -> None:
            self.read.append(sum(float(each.grad.norm()) for each in module.parameters()))

        def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
            self.read.append(sum(float(each.norm()) for each in module.parameters()))

    class ClearedReader(Callback):
        """Reads parameters, and the gradients of the last update, before these are cleared."""

        def __init__(self) -> None:
            self.read: list[float] = []

        def on_before_zero_grad(self, trainer: Any, module: Any, optimizer: Any) -> None:
            for values in ((each, each.grad) for each in module.parameters()):
                self.read += [float("nan") if value is None else float(value.norm()) for value in values]

    class EpochReader(Callback):
        def __init__(self) -> None:
            self.read: list[float] = []

        def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
            self.read.append(sum(float(each.norm()) for each in module.parameters()))

    found: dict[str, Any] = {}
    for case, options in CASES.items():
        for method in ("DDP", "transfers"):
            batches = STEPS // 4 * options.get("accumulate_grad_batches", 1)
            data = torch.utils.data.DataLoader(dataset(RANKS * SAMPLES * batches), batch_size=SAMPLES)
            strategy = (
                DDPStrategy() if method == "DDP" else TransferStrategy(dp.find_cluster("loopback", RANKS), TRYING)
            )
            reader = {"read in epochs": EpochReader, "read in zero_grad": ClearedReader}.get(case, Reader)()
            if case == "fp16":
                # Lightning itself takes bf16 in its place on a CPU.
                options["plugins"] = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
            trainer = Trainer(
                accelerator="cpu",
                devices=RANKS,
                strategy=strategy,
                max_epochs=4,
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder / f"{case}-{method}",
                callbacks=[reader] if case.startswith("read in") else [],
                **options,
            )
            module = ScheduledModule() if case == "read by schedule" else Module()
            if case == "fp16":
                if method == "transfers":
                    try:
                        trainer.fit(module, data, data)
                    except InvalidValueError as error:
                        found[case] = str(error)
                continue
            trainer.fit(module, data, data)
            found[f"{case}, {method}"] = {
                "losses": module.losses,
                "checked": module.checked,
                "read": module.read if case == "read by schedule" else reader.read,
                "weights": [value for each in module.parameters() for value in each.flatten().tolist()],
                "sent": None
                if method == "DDP"
                else len({n for each in strategy.plan.transfers for n in each.gradients}),
                "timeline": method == "transfers" and strategy.timeline is not None,
                "checkpoints": len(list((folder / f"{case}-{method}").rglob("*.ckpt"))),
            }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
