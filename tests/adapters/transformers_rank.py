"""One rank that trains by a Trainer of transformers, with its own DDP and with transfers; see test_transformers.py."""

import json
import warnings
from pathlib import Path

import torch

import deeppool as dp
from tests.adapters.ranks import RANKS, SAMPLES, STEPS, TRYING, Net, dataset, join

CASES = {
    "clipped": {"max_grad_norm": 0.1},
    "not clipped": {"max_grad_norm": 0.0},
    "accumulated": {"max_grad_norm": 0.0, "gradient_accumulation_steps": 2},
}


def run(rank: int, folder: Path, port: int) -> None:
    warnings.simplefilter("ignore")
    join(rank, port)
    from transformers import Trainer, TrainingArguments

    from deeppool.adapters.transformers import use_transfers

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
            trainer = Trainer(model=model, args=arguments, train_dataset=dataset(RANKS * SAMPLES * accumulated * 10))
            transfers = use_transfers(trainer, dp.find_cluster("loopback", RANKS), TRYING) if method != "DDP" else None
            trainer.train()
            halfway = torch.load(
                folder / f"{case}-{method}" / f"checkpoint-{STEPS // 2}" / "optimizer.pt", weights_only=True
            )
            found[f"{case}, {method}"] = {
                "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
                "norms": [entry.get("grad_norm") for entry in trainer.state.log_history if "loss" in entry],
                "weights": [value for each in model.parameters() for value in each.flatten().tolist()],
                "groups": len(halfway["param_groups"]),
                "sent": None
                if transfers is None
                else len({name for each in transfers.plan.transfers for name in each.gradients}),
                "timeline": bool(transfers and transfers.timeline),
            }
    (folder / f"rank-{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
