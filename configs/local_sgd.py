"""Local SGD: models are averaged every 8 steps.

Reproduces: nothing published.
Expected:   98.89 % test accuracy of the mean model with seed 0, 8 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/local_sgd.py --workdir=runs/local_sgd
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.mixer = "local_sgd(h=8)"
    config.exchange = "exact"
    config.compressor = "none"
    config.memory = "none"
    return config
