"""What do the exact and the published search make of DeepPool's own A100 layer times?

Plans each model by both searches on the same prices, with several limits and cluster sizes, at one global batch
(strong scaling). The layer times are files that the project does not hold: see a100_profiles.py for their names.

    python -m benchmarks.planner.a100 --profiles FOLDER
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

from benchmarks.planner.a100_profiles import MODELS, read_profile
from benchmarks.planner.published import Comparison, compare
from deeppool.cluster.cluster import NVSWITCH_A100, PRESETS, Cluster
from deeppool.units import format_seconds

FOLDER_VARIABLE = "DEEPPOOL_A100_PROFILES"
SIZES = (8, 64, 256, 1024)
LIMITS = (1.5, 2.0, 4.0, None)
CLUSTERS = {
    # Section 4.1 of the paper: "full bi-section networking (as in NVSwitch networking)".
    "full-bisection": Cluster(8, "full-bisection", 8, NVSWITCH_A100, NVSWITCH_A100),
    "dgx-a100": PRESETS["dgx-a100"],
}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--profiles", type=Path, default=os.environ.get(FOLDER_VARIABLE), help=f"folder, or set {FOLDER_VARIABLE}"
    )
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--gpus", type=int, nargs="+", default=SIZES)
    parser.add_argument("--global-batch", type=int, default=1024)
    parser.add_argument("--cluster", default="full-bisection", choices=CLUSTERS)
    parser.add_argument("--network-model", default="ring", choices=("ring", "best", "paper"))
    parser.add_argument("--precision", default="fp32", choices=("fp32", "fp16"), help="of what the network moves")
    arguments = parser.parse_args()
    if arguments.profiles is None:
        parser.error(f"which folder holds the layer times? (--profiles FOLDER, or {FOLDER_VARIABLE})")
    print(
        f"Global batch {arguments.global_batch}, {arguments.cluster}, {arguments.network_model}, "
        f"{arguments.precision} on the network\n\n"
        "| model | GPUs | limit | exact | published claims | really takes | real / exact | layers over the limit "
        "| worst layer | exact at the amplification it really has | GPUs it needs at once |\n" + "|---" * 11 + "|"
    )
    for model in arguments.models:
        profile = read_profile(arguments.profiles, model, arguments.precision)
        for gpus in arguments.gpus:
            cluster = replace(CLUSTERS[arguments.cluster], gpus=gpus)
            for limit in LIMITS:
                found = compare(profile, cluster, arguments.global_batch, limit, arguments.network_model)
                print(row(found), flush=True)


def row(found: Comparison) -> str:
    """A row of the table."""
    exact, published = found.exact, found.published
    claim = published.claim
    over = len(published.over_limit)
    cells = [
        published.model,
        str(published.gpus),
        "none" if published.amplification_limit is None else f"{published.amplification_limit:g}",
        format_seconds(exact.iteration_time),
        format_seconds(claim.iteration_time),
        format_seconds(published.iteration_time),
        f"{found.ratio:.2f}",
        f"{over} of {len(published.layers)}" if over else "–",
        f"{found.excess:.2f} x the limit" if over else "–",
        format_seconds(found.as_amplified.iteration_time),
        str(claim.gpus) if claim.gpus <= published.gpus else f"**{claim.gpus}**",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
