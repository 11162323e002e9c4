"""The project's notebooks, run by papermill; what they find, and whether it moved since the nights before.

notebooks   finds, runs, converts and copies them
findings    what a notebook finds, collected a line at a time
record      the evaluation that it saves: numbers beside the paper's, statements that hold or do not
report      an evaluation as tables
"""

from deeppool.evaluation.findings import Findings
from deeppool.evaluation.record import Check, Evaluation, Number

__all__ = ["Check", "Evaluation", "Findings", "Number"]
