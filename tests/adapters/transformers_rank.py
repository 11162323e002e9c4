"""One rank that trains by a Trainer of transformers, with its own DDP and with transfers; see test_transformers.py."""

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import deeppool as dp
from tests.adapters.ranks import RANKS, SAMPLES, STEPS, TRYING, Net, dataset, join, preload

CASES = {
    "clipped": {"max_grad_norm": 0.1},
    "not clipped": {"max_grad_norm": 0.0},
    "accumulated": {"max_grad_norm": 0.0, "gradient_accumulation_steps": 2},
    "read": {"max_grad_norm": 0.0},
    "after a failure": {"max_grad_norm": 0.1},
}
FAILING = STEPS - 10
"""Updates before the forward that fails."""


def prepare(folder: Path, port: int) -> None:
    preload("deeppool.adapters.transformers", "transformers.trainer", "accelerate")


def run(rank: int, folder: Path, port: int) -> None:
    warnings.simplefilter("ignore")
    join(rank, port)
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from deeppool.adapters.transformers import use_transfers

    class Reader(TrainerCallback):
        """Reads gradients and parameters where users' callbacks do."""

        def __init__(self) -> None:
            self.read: list[float] = []

        def on_pre_optimizer_step(self, *_: Any, model: Any, **others: Any) -> None:
            self.read.append(sum(float(each.grad.norm()) for each in model.parameters()))

        def on_step_end(self, *_: Any, model: Any, **others: Any) -> None:
            self.read.append(sum(float(each.norm()) for each in model.parameters()))

    class Failing(TrainerCallback):
        failed = False

        def on_step_begin(self, arguments: Any, state: Any, *_: Any, **others: Any) -> None:
            if state.global_step == FAILING and not self.failed:
                self.failed = True
                raise MemoryError

    found = {}
    for case, options in CASES.items():
        for method in ("DDP", "transfers"):
            accumulated = options.get("gradient_accumulation_steps", 1)
            arguments = TrainingArguments(
                output_dir=str(folder / f"{case}-{method}"),
                use_cpu=True,
                max_steps=STEPS,
                per_device_train_batch_size=SAMPLES,
                logging_steps=1,
                learning_rate=0.05,
                optim="sgd",
                save_strategy="steps",
                save_steps=STEPS // 2,
                report_to=[],
                disable_tqdm=True,
                seed=3,
                **options,
            )
            model = Net(rank)
            reader = Reader()
            callbacks = {"read": [reader], "after a failure": [Failing()]}.get(case, [])
            data = dataset(RANKS * SAMPLES * accumulated * 10)
            trainer = Trainer(model=model, args=arguments, train_dataset=data, callbacks=callbacks)
            transfers = use_transfers(trainer, dp.find_cluster("loopback", RANKS), TRYING) if method != "DDP" else None
            with suppress(MemoryError):
                trainer.train()
            if case == "after a failure":
                trainer.train()
            halfway = torch.load(
                folder / f"{case}-{method}" / f"checkpoint-{STEPS // 2}" / "optimizer.pt", weights_only=True
            )
            found[f"{case}, {method}"] = {
                "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                "norms": [entry.get("grad_norm") for entry in trainer.state.log_history if "loss" in entry],
                "weights": [value for each in model.parameters() for value in each.flatten().tolist()],
                "read": reader.read,
                "groups": len(halfway["param_groups"]),
                "sent": None
                if transfers is None
                else len({name for each in transfers.plan.transfers for name in each.gradients}),
                "timeline": bool(transfers and transfers.timeline),
            }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
