"""Importing deeppool is cheap and has no effects."""

import subprocess
import sys

HEAVY = {"torch", "torchvision", "numpy", "plotly", "ipywidgets", "pydantic", "rich", "papermill"}


def run_python(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    return done.stdout + done.stderr


def test_importing_deeppool_loads_no_heavy_package() -> None:
    loaded = run_python("import sys, deeppool; print(*{name.split('.')[0] for name in sys.modules})")
    assert "deeppool" in loaded.split()
    assert HEAVY & set(loaded.split()) == set()


def test_asking_what_deeppool_offers_loads_no_heavy_package() -> None:
    loaded = run_python("import sys, deeppool; dir(deeppool); deeppool.Cluster; print(*sys.modules)")
    assert "deeppool.cluster.cluster" in loaded.split()
    assert HEAVY & set(loaded.split()) == set()


def test_importing_deeppool_prints_nothing() -> None:
    assert run_python("import deeppool") == ""


def test_a_widget_that_exports_no_model_loads_nothing_that_does() -> None:
    loaded = run_python("import sys, deeppool.widgets; deeppool.widgets.AmplificationExplorer; print(*sys.modules)")
    assert "torch" in loaded.split()
    assert {"torch._dynamo", "sympy", "networkx"} & set(loaded.split()) == set()


def test_what_plans_simulates_and_shows_files_loads_no_torch() -> None:
    modules = ("planning.planner", "simulation.cluster.simulate", "advice.card", "figures.record_page", "figures.trace")
    imports = "".join(f"import deeppool.{module}\n" for module in modules)
    loaded = run_python(f"{imports}import sys\nprint(*sys.modules)")
    assert "deeppool.figures.record_page" in loaded.split()
    assert "torch" not in loaded.split()
