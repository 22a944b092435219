"""QSGD, which rounds without bias and needs no memory; parts/qsgd:1 has one level.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/qsgd.py
"""

from ml_collections import ConfigDict

from configs.parts import exact


def update(config: ConfigDict, levels: str = "7") -> None:
    exact.update(config)
    config.exchange = "gather"
    config.compressor = f"qsgd(levels={levels})"
