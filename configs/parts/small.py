"""Twenty steps, to see that a config runs at all; a step is as large as ever.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/small.py
"""

from ml_collections import ConfigDict


def update(config: ConfigDict, steps: str = "20") -> None:
    config.train_for = f"{steps} steps"
    config.warmup = ""
    config.log_every = 1
