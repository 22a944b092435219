"""DeepSqueeze: 8 workers on a ring send whole models in 4 bits.

Reproduces: nothing published.
Expected:   97.78 % test accuracy of the mean model with seed 0, 97.2 % the worst
            worker's; 6.9 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/deep_squeeze.py --workdir=runs/deep_squeeze
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "deep_squeeze(gamma=0.1)"
    config.topology = "ring"
    config.compressor = "qsgd(levels=7, norm='max', rounding='nearest')"
    return config
