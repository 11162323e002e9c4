"""The project's notebooks, executed by papermill: their numbers and checks, and how these change between nightly runs.

entries            numbers beside the paper's, checks that hold or do not
paper_values       what the papers print, with the sentence and its place
findings           collects them while a notebook runs
record             the record of one evaluation notebook
tables             numbers and checks as text and HTML tables
profiles           layer times of the models that evaluations compare
notebooks          finds, runs and copies notebooks; starts JupyterLab
process_pool       runs notebooks in processes of their own, several at once
execution          executes one notebook with papermill
notebook_html      HTML report of an executed notebook
nightly            a nightly run of all notebooks
nightly_record     the record of a nightly run: outcomes, numbers, checks
observations       numbers in a notebook's output folder, layer times of profiles included
number_comparison  whether a number changed beyond its noise
regression_report  a nightly run compared with earlier ones
archive            the folder of nightly runs
index              index page of a nightly run
jupyter            settings that `deeppool lab` gives to JupyterLab, and the list of runs in its sidebar
runs_handlers      the requests that this list makes of JupyterLab's server
templates          HTML templates of the index page and of tables
figures            figures of single evaluation notebooks
experiments        simulations and measurements of single evaluation notebooks
"""

from deeppool.evaluation.entries import Check, Number
from deeppool.evaluation.findings import Findings
from deeppool.evaluation.record import Evaluation

__all__ = ["Check", "Evaluation", "Findings", "Number"]
