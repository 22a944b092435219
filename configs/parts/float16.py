"""Convolutions in float16, with a loss scale that finds its size by itself.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/float16.py
"""

from ml_collections import ConfigDict


def update(config: ConfigDict) -> None:
    config.compute_dtype = "float16"
    config.loss_scale = "dynamic"
