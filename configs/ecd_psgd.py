"""ECD-PSGD: 8 workers on a ring send overshot models in 12 bits.

Reproduces: nothing published.
Expected:   98.61 % test accuracy of the mean model with seed 0, 98.3 % the worst
            worker's; 2.3 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/ecd_psgd.py --workdir=runs/ecd_psgd
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "ecd_psgd"
    config.topology = "ring"
    config.compressor = "qsgd(levels=2047, norm='max')"
    return config
