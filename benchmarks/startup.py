"""How long the command line takes to start, as ratios to the import of LightningCLI; commands take turns.

python -m benchmarks.startup
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time

FIRST_STEP = """
import os
import sys

from lightning.pytorch import Callback

from flightning.cli import main


class LeaveAfterFirstStep(Callback):
    def on_train_batch_end(self, *args):
        os._exit(0)


main(["fit", "--config", "quickstart", "--run_folder", sys.argv[1]], callbacks=[LeaveAfterFirstStep()])
sys.exit("no step was taken")
"""

COMMANDS = {
    "import lightning.pytorch.cli": ["-c", "import lightning.pytorch.cli"],
    "flightning --help": ["-m", "flightning", "--help"],
    "first step of the quickstart": ["-c", FIRST_STEP, "FOLDER"],
}


def seconds(command: list[str]) -> float:
    """Time of one start."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [f"{folder}/run" if a == "FOLDER" else a for a in command]
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        return time.perf_counter() - start


def main() -> None:
    """Print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    rows = [{name: seconds(command) for name, command in COMMANDS.items()} for _ in range(turns + 1)][1:]
    base = next(iter(COMMANDS))
    for name in COMMANDS:
        ratio = statistics.median(row[name] / row[base] for row in rows)
        print(f"{name:32s} {statistics.median(row[name] for row in rows):.2f} s  ratio {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
