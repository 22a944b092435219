"""DiLoCo: 16 steps alone, then what was learnt in 4 bits.

Reproduces: nothing published.
Expected:   98.4 % test accuracy of the mean model (98.33, 98.61 and 98.33 % with seeds
            0, 1, 2, against 98.61, 98.33 and 97.50 % of `exact`), 65 times
            fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/diloco.py --workdir=runs/diloco
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.mixer = "diloco(h=16, rate=0.7, momentum=0.5)"
    config.compressor = "qsgd(levels=7, norm='max')"
    config.memory = "none"
    return config
