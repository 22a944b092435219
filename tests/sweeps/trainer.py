"""A trainer for tests of sweeps, which takes the words of train.py and needs no jax.

It writes in each run folder how often it was started. Its accuracy is best for a
learning rate of 0.4. Seed 6 changes the file that the sweep names as config. Seed 7
always fails and says so in its folder, seed 8 crashes the first time, and seed 9 waits
to be killed until the sweep's folder has a file `again`.
"""

import os
import runpy
import signal
import sys
import time
from pathlib import Path

HEADER = (
    "epoch,step,seconds,test_loss,test_accuracy,wire_bytes_per_step,bytes_left,"
    "exact_bytes_left,times_fewer\n"
)


def main(words: list[str]) -> int:
    flags = dict(word.removeprefix("--").split("=", 1) for word in words)
    config = runpy.run_path(flags["config"])["get_config"]()
    folder, seed = Path(flags["workdir"]), config.seed
    folder.mkdir(exist_ok=True)
    with open(folder / "starts.txt", "a") as file:
        file.write(f"{os.getpid()}\n")
    is_first = len((folder / "starts.txt").read_text().splitlines()) == 1
    if seed == 7 or (seed == 8 and is_first):
        print("train.py: the loss is not finite")
        if seed == 7:
            text = '{"failed": "the loss is not finite"}'
            (folder / "environment.json").write_text(text)
        return 1
    if seed == 9 and not (folder.parent.parent / "again").exists():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # has saved
        time.sleep(60)
    if seed == 6:
        (folder.parents[2] / "own.py").write_text("changed = True\n")
    accuracy = 0.9 - seed / 100 - abs(config.learning_rate - 0.4)
    rows = (
        f"1,5,0.1,0.5,{accuracy},100,1500,6000,4",
        f"2,10,0.2,0.6,{accuracy - 0.01},50,2250,12000,{12000 / 2250}\n",
    )
    (folder / "metrics.csv").write_text(HEADER + "\n".join(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
