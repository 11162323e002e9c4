"""One rank that trains by a Trainer of Lightning, with its own DDP and with transfers; see test_lightning.py."""

import json
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

import deeppool as dp
from tests.adapters.ranks import RANKS, SAMPLES, STEPS, TRYING, Net, dataset, join

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"gradient_clip_val": 0.1},
    "accumulated": {"accumulate_grad_batches": 2},
}


def run(rank: int, folder: Path, port: int) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    join(rank, port)
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    from deeppool.adapters.lightning import TransferStrategy

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

    found = {}
    for case, options in CASES.items():
        for method in ("DDP", "transfers"):
            batches = STEPS // 4 * options.get("accumulate_grad_batches", 1)
            data = torch.utils.data.DataLoader(dataset(RANKS * SAMPLES * batches), batch_size=SAMPLES)
            strategy = (
                DDPStrategy() if method == "DDP" else TransferStrategy(dp.find_cluster("loopback", RANKS), TRYING)
            )
            trainer = Trainer(
                accelerator="cpu",
                devices=RANKS,
                strategy=strategy,
                max_epochs=4,
                logger=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                default_root_dir=folder / f"{case}-{method}",
                **options,
            )
            module = Module()
            trainer.fit(module, data, data)
            found[f"{case}, {method}"] = {
                "losses": module.losses,
                "checked": module.checked,
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
