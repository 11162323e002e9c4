"""A process that says how much CPU time it used: ``allocate`` or ``reserve BYTES``, ``burn SECONDS`` of CPU time."""

import mmap
import os
import sys
import time


def main() -> None:
    held: list[object] = []
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {int(sys.argv[1])})
    print(time.process_time(), flush=True)
    for line in sys.stdin:
        order, _, amount = line.partition(" ")
        if order == "allocate":
            held.append(b"x" * int(amount))
        if order == "reserve":
            held.append(mmap.mmap(-1, int(amount)))
        began = time.process_time()
        while order == "burn" and time.process_time() < began + float(amount):
            pass
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
