"""Two notebooks for a nightly run: one that runs a plan, and one that computes."""

from pathlib import Path

import nbformat

HEAD = """from pathlib import Path
import deeppool as dp
from deeppool.evaluation import Findings"""
BODIES = {
    "01-run": """run = dp.launch(dp.load(plan), background="job:net", seconds=3)
findings = Findings("run", "A run", {"plan": plan}, device="here")
findings.check("it trained", run.foreground.throughput > 0, "")
print(findings.save(Path(output)))""",
    "02-plan": """total = sum(dp.simulate(dp.load(plan)).iteration_time for _ in range(2000))
findings = Findings("plan", "A plan", {"plan": plan}, device="here")
findings.check("it was simulated", total > 0, "")
print(findings.save(Path(output)))""",
}


def write_notebooks(folder: Path, plan: Path) -> None:
    """Writes them with the file of the plan as a parameter."""
    folder.mkdir()
    for name, body in BODIES.items():
        notebook = nbformat.v4.new_notebook()
        notebook.metadata["kernelspec"] = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook.metadata["deeppool"] = {"measures": name == "01-run", "quick": {}, "full": {}}
        first = nbformat.v4.new_code_cell(f'plan = "{plan}"\noutput = "."', metadata={"tags": ["parameters"]})
        notebook.cells = [nbformat.v4.new_markdown_cell(f"# {name}\n\nProse."), first]
        notebook.cells += [nbformat.v4.new_code_cell(source) for source in (HEAD, body)]
        nbformat.write(notebook, folder / f"{name}.ipynb")
