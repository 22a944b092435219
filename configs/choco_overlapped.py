"""CHOCO-SGD whose messages travel beside the gradient, on a torus of 8.

Reproduces: nothing published.
Expected:   TBD-choco_overlapped
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/choco_overlapped.py --workdir=runs/overlapped
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
