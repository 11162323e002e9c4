"""What test modules import, and what ranks and backgrounds do: a fork server of the tests loads it before it forks."""

import gc
import importlib

for module in (
    "deeppool.cli.app",
    "deeppool.collocation.background_worker",
    "deeppool.execution.trainer",
    "deeppool.execution.worker",
    "hypothesis",
    "pytest",
    "tests.processes.children",
    "tests.runs.test_train",
    "tests.strategies",
):
    importlib.import_module(module)

# All of it stays: a fork's garbage collector does not look at it.
gc.freeze()
