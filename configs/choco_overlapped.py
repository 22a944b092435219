"""CHOCO-SGD whose messages travel beside the gradient, on a torus of 8.

Reproduces: nothing published.
Expected:   98.89 % test accuracy of the mean model with seed 0, 98.1 % the worst
            worker's; 18.5 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/choco_overlapped.py \
            --workdir=runs/overlapped
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "choco_overlapped(gamma=0.5)"
    config.topology = "torus"
    config.compressor = "sign"
    return config
