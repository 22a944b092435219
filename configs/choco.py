"""CHOCO-SGD: 8 workers on a ring send signs of what neighbours do not know.

Reproduces: nothing published.
Expected:   98.06 % test accuracy of the mean model with seed 0, 97.5 % the worst
            worker's; 27.7 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/choco.py --workdir=runs/choco
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "choco(gamma=0.5)"
    config.topology = "ring"
    config.compressor = "sign"
    return config
