"""How long a small command takes on a busy machine, by how torch's threads wait for each other.

    python benchmarks/waiting.py

`rankrise flow` runs beside as many busy processes as there are cores: with threads that sleep while they
wait, as the commands let them, and with threads that spin, as torch's do by themselves.
"""

import argparse
import os
import subprocess
import sys
import time
from statistics import median

COMMAND = [sys.executable, "-m", "rankrise", "flow", "--log10_alpha", "-300", "--until", "4", "--json"]
BUSY = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed, in turn")
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="busy processes beside it")
    asked = parser.parse_args()
    beside = [subprocess.Popen(BUSY) for _ in range(asked.busy)]
    try:
        asleep, spinning = [], []
        for _ in range(asked.rounds):
            asleep.append(_seconds({}))
            spinning.append(_seconds({"OMP_WAIT_POLICY": "active"}))
    finally:
        for process in beside:
            process.kill()
    print(f"{os.cpu_count()} cores, {asked.busy} busy processes, median of {asked.rounds}:")
    ratio = median(spinning) / median(asleep)
    print(f"threads sleep {median(asleep):.1f} s, threads spin {median(spinning):.1f} s, ratio {ratio:.1f}")


def _seconds(waiting: dict[str, str]) -> float:
    unset = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    environment = {name: value for name, value in os.environ.items() if name not in unset} | waiting
    begun = time.perf_counter()
    subprocess.run(COMMAND, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
