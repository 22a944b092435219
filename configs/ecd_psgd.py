"""ECD-PSGD: 8 workers on a ring send overshot models in 16 bits.

Reproduces: nothing published.
Expected:   TBD-ecd_psgd
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
    config.compressor = "qsgd(levels=32767, norm='max')"
    return config
