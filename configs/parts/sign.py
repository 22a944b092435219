"""Signs with one scale for each tensor, and error feedback.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/sign.py
"""

from ml_collections import ConfigDict

from configs.parts import exact


def update(config: ConfigDict) -> None:
    exact.update(config)
    config.exchange = "gather"
    config.compressor = "sign"
    config.memory = "error_feedback"
