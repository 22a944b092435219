"""CHOCO-SGD: a model for each worker, which tells two neighbours its signs.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/choco.py
"""

from ml_collections import ConfigDict

from configs.parts import exact


def update(config: ConfigDict) -> None:
    exact.update(config)
    config.mixer = "choco(gamma=0.5)"
    config.topology = "ring"
    config.exchange = config.memory = ""
    config.compressor = "sign"
    config.scope = "per_leaf"
