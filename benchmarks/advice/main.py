"""How long does ``deeppool advise`` take for every classifier of torchvision, without a GPU?

python benchmarks/advice/main.py -o times.json
python benchmarks/advice/main.py vgg16 swin_t
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from deeppool.graph.models.libraries import torchvision_names

BAR = 30
"""Seconds that a user waits for an answer."""
QUESTION = ["--gpus", "8", "--global-batch", "256", "--device", "h100"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One call of the command, from its start to its end."""

    model: str
    time: float
    """Seconds, the start of Python included."""
    processor_time: float
    """Seconds of all its threads."""
    exit_code: int
    verdicts: str


def main() -> None:
    """Prints a line per model, then the median and the worst."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help="torchvision's classifiers; all of them without one")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the times")
    arguments = parser.parse_args()
    answers = []
    print("| model | seconds | processor seconds | worth it |\n|---|---|---|---|")
    for model in arguments.models or classifiers():
        answers.append(ask(model))
        each = answers[-1]
        print(f"| {model} | {each.time:.1f} | {each.processor_time:.1f} | {each.verdicts} |", flush=True)
        if arguments.output:
            arguments.output.write_text(json.dumps([asdict(each) for each in answers], indent=1) + "\n")
    print(f"\n{summary(answers)}")


def classifiers() -> list[str]:
    """Returns the classifiers of torchvision, by name."""
    return sorted(torchvision_names())


def ask(model: str) -> Answer:
    """Runs the command for one model."""
    before, start = processor_time(), time.perf_counter()
    command = [sys.executable, "-m", "deeppool.cli", "advise", model, *QUESTION, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = time.perf_counter() - start
    if done.returncode:
        told = done.stderr.strip().splitlines()[-1]
    else:
        told = ", ".join(each["technique"] for each in json.loads(done.stdout)["findings"] if each["verdict"] == "yes")
    return Answer(model, taken, processor_time() - before, done.returncode, told)


def processor_time() -> float:
    """Returns the seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def summary(answers: list[Answer]) -> str:
    """Returns how many were answered, and how soon."""
    answered = [each for each in answers if each.exit_code == 0]
    slowest = max(answered, key=lambda each: each.time)
    times, processor = [each.time for each in answered], [each.processor_time for each in answered]
    return (
        f"{len(answered)} of {len(answers)} answered, {sum(each < BAR for each in times)} within {BAR} s: "
        f"median {statistics.median(times):.1f} s, worst {slowest.time:.1f} s ({slowest.model}); "
        f"processor seconds: median {statistics.median(processor):.1f}, worst {max(processor):.1f}"
    )


if __name__ == "__main__":
    main()
