"""D-PSGD, whole models, one neighbour a step: the exponential graph in turns.

Reproduces: nothing published.
Expected:   98.33 % test accuracy of the mean model with seed 0, 98.3 % the worst
            worker's; one whole model a step.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/d_psgd.py --workdir=runs/d_psgd
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "d_psgd"
    config.topology = "exponential(one_peer=True)"
    config.compressor = "none"
    return config
