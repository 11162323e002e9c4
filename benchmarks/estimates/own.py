"""Calibrates this machine, and compares estimates of models from that with their own profiles on it."""

import argparse
import statistics
import time

import torch

import deeppool as dp

MODELS = (
    "resnet18 resnet50 vgg11_bn mobilenet_v2 mobilenet_v3_small shufflenet_v2_x1_0 squeezenet1_1 densenet121 "
    "regnet_y_400mf efficientnet_b0 convnext_tiny swin_t"
).split()


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=MODELS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    calibration = dp.calibrate(device=given.device)
    print(f"{calibration}; in {time.monotonic() - start:.0f} s\n")
    print("| model | estimated | measured | estimated / measured |\n|---|---|---|---|")
    errors = []
    for name in given.models:
        captured = dp.capture(name)
        estimated = dp.estimate(captured, gpu=calibration, batch_sizes=[given.batch]).iteration_time(given.batch)
        profile = dp.profile(captured, device=given.device, batch_sizes=[given.batch], seconds=2)
        measured = profile.iteration_time(given.batch)
        errors.append(abs(estimated / measured - 1))
        print(
            f"| {name} | {1e3 * estimated:.4g} ms | {1e3 * measured:.4g} ms | {estimated / measured:.2f} |", flush=True
        )
    print(f"\nAbsolute error: median {100 * statistics.median(errors):.1f} %, largest {100 * max(errors):.1f} %")


if __name__ == "__main__":
    main()
