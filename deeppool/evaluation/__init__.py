"""The project's notebooks, run by papermill; what they find, and whether it moved since the nights before.

findings       what a notebook finds, collected a line at a time
record         the evaluation that it saves: numbers beside the paper's, statements that hold or do not
report         an evaluation as tables
profiles       layer times of the models that it compares
notebooks      finds notebooks, runs some, copies them
task           a notebook to run
execution      runs one by papermill
html           its report
worker, crew   the process of each, and many of them, some at once
nightly        a night of all of them
night          what a night leaves: outcomes, numbers, checks
observations   the numbers of an output folder, layer times of profiles among them
noise          whether a number moved beyond its own noise
verdict        a night against the nights before it
archive, lock  the folder of nights, and its one writer
retention      which old nights go
thumbnails     pictures of the figures
index          the page of a night
"""

from deeppool.evaluation.findings import Findings
from deeppool.evaluation.record import Check, Evaluation, Number

__all__ = ["Check", "Evaluation", "Findings", "Number"]
