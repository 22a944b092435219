"""PowerSGD with error feedback; of rank 2, and parts/power_sgd:4 is of rank 4.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/power_sgd.py
"""

from ml_collections import ConfigDict

from configs.parts import exact


def update(config: ConfigDict, rank: str = "2") -> None:
    exact.update(config)
    config.exchange = f"power_sgd(rank={rank})"
    config.memory = "error_feedback"
