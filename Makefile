# What you can ask of this checkout; `make` alone lists it. Everything is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
# Compiling all that is installed takes nearly as long as the rest of the installation, and most is never imported.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# For two cores: many tests wait for other processes.
WORKERS := -n 4 --dist loadfile --no-loadscope-reorder
TESTS := not slow and not stress

# Hundreds of processes start in a run of the tests: none of them should compile deeppool again.
unexport PYTHONDONTWRITEBYTECODE

.DELETE_ON_ERROR:
SHIPPED := vgg16 wide_resnet101_2 inception_v3 resnet50

.PHONY: help demo docs results lab check test full suite soak stress shipped pictures clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## */\t/' | expand -t 10

demo: $(BIN)/deeppool  ## evaluate burst parallelism on this machine; the report goes to demo/
	$(BIN)/deeppool evaluate burst-parallel -o demo

lab: $(BIN)/deeppool  ## open the workbench in JupyterLab
	$(BIN)/deeppool lab

docs: $(BIN)/mkdocs  ## build the documentation as a site, in site/; every link is checked
	$(BIN)/mkdocs build --strict

results: $(BIN)/deeppool  ## collect docs/results.md from the READMEs of the benchmarks
	$(BIN)/python -m docs.results

check: $(BIN)/pytest  ## lint and check types
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/notebooks/test_notebooks.py::test_what_notebooks_call_is_there

test:  ## check, and run all tests but the slow ones; side by side, as mypy takes one core
	@$(MAKE) --no-print-directory -j 2 check suite

full:  ## check, run all tests but the stress tests, and a seventh of these, another one every day; half an hour
	@$(MAKE) --no-print-directory -j 2 check suite TESTS="not stress or tonight"

suite: $(BIN)/collected
	find notebooks -name '*.ipynb' -not -path '*/.ipynb_checkpoints/*' -exec $(BIN)/nbstripout --verify {} +
	$(BIN)/pytest $(WORKERS) -m "$(TESTS)"

soak: $(BIN)/pytest  ## start and kill 200 runs at random moments; more than half an hour
	DEEPPOOL_SOAK_CYCLES=200 $(BIN)/pytest -s tests/execution/test_soak.py

stress: $(BIN)/pytest  ## every test in full, a hundred thousand random graphs among them; over an hour
	DEEPPOOL_STRESS=1 $(BIN)/pytest $(WORKERS)

shipped: $(BIN)/deeppool  ## measure the profiles that come with deeppool again; some minutes of an idle machine
	mkdir -p deeppool/profiling/data
	for model in $(SHIPPED); do \
	  $(BIN)/deeppool profile $$model --device cpu -o deeppool/profiling/data/$$model-cpu.json || exit 1; \
	done

pictures: $(BIN)/pytest demo  ## make the pictures of the README, by Chromium
	$(BIN)/python docs/screenshots.py --records demo/burst-parallel -o docs/pictures

clean:  ## remove what the targets above made, .venv too
	rm -rf .venv demo site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each names a program that it installs: what pip has put there is not installed again until these files change.
$(BIN)/deeppool: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing deeppool into .venv: some minutes the first time" >&2
	$(INSTALL) -e .
	@touch $@

$(BIN)/pytest: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing deeppool and its test tools into .venv: some minutes the first time" >&2
	$(INSTALL) -e ".[test]"
	@touch $@ $(BIN)/deeppool

# Without it each worker compiles all that tests import, at the same time as the others.
$(BIN)/collected: $(BIN)/pytest
	@echo "Compiling what the tests import: half a minute the first time" >&2
	-$(BIN)/pytest --collect-only -qq > /dev/null
	@touch $@

$(BIN)/mkdocs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing deeppool and the tools of its documentation into .venv" >&2
	$(INSTALL) -e ".[docs]"
	@touch $@ $(BIN)/deeppool

# The pip that comes with Python 3.11 takes 50 s of CPU time for the installation, a new one 35; either will do.
$(BIN)/python:
	$(PYTHON) -m venv .venv
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
