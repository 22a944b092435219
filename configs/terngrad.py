"""TernGrad with a shared scaler: levels -1, 0, 1 that add up in packed words.

Reproduces: nothing published.
Expected:   98.9 % test accuracy (98.89 % with seed 0), 8.0 times fewer bytes.
Cost:       about a minute on 2 CPU cores.
Command:    python train.py --config=configs/terngrad.py --workdir=runs/terngrad
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.exchange = "shared_scale(clip=2.5)"
    config.memory = "none"
    return config
