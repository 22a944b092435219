"""Convolutions in bfloat16; parameters and what is sent stay float32.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/bfloat16.py
"""

from ml_collections import ConfigDict


def update(config: ConfigDict) -> None:
    config.compute_dtype = "bfloat16"
