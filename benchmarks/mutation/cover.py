"""Which lines of the package do the tests run, and which test runs which line?

    python benchmarks/mutation/cover.py -o coverage.db [TESTS …]      # all tests without any

Processes that tests start count, too, as parts of their test: commands, fork servers and what these fork, but for those
that are killed. Several calls with the same file add up.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import coverage

CHECKOUT = Path(__file__).resolve().parents[2]
SETTINGS = """
[run]
source = deeppool
parallel = true
concurrency = multiprocessing,thread
# Forked processes end by os._exit.
patch = _exit, fork
sigterm = true
data_file = {folder}/{name}
context = ${{COVERAGE_CONTEXT-}}
"""
START = "import coverage; coverage.process_startup()"
PLUGIN = """
import os
import coverage, pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    os.environ["COVERAGE_CONTEXT"] = item.nodeid
    if (running := coverage.Coverage.current()) is not None:
        running.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        del os.environ["COVERAGE_CONTEXT"]
"""


def main() -> int:
    """Runs the tests, prints the share of lines by module, and keeps which test runs which."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="coverage's data file")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=400.0, help="seconds of one test, which is slower so")
    parser.add_argument("tests", nargs="*", default=["tests"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in {
            "settings.ini": SETTINGS.format(folder=folder, name=arguments.output.name),
            "sitecustomize.py": START,
            "contexts_of_tests.py": PLUGIN,
        }.items():
            (folder / file).write_text(text)
        options = ["-q", "-p", "contexts_of_tests", "-p", "no:cacheprovider", "-m", "not stress"]
        options += ["-n", str(arguments.workers), "--dist", "loadfile", "-o", f"timeout={arguments.timeout:g}"]
        paths = os.pathsep.join([str(folder), str(CHECKOUT)])
        environment = {**os.environ, "PYTHONPATH": paths, "COVERAGE_PROCESS_START": str(folder / "settings.ini")}
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *arguments.tests], cwd=CHECKOUT, env=environment, check=False
        )
        measured = coverage.Coverage(data_file=arguments.output.resolve(), source=["deeppool"])
        if arguments.output.exists():
            measured.load()
        # Paths of the report are those below the checkout.
        os.chdir(CHECKOUT)
        measured.combine([name])
        measured.save()
        measured.report(skip_covered=True, sort="cover")
    return ended.returncode


if __name__ == "__main__":
    sys.exit(main())
