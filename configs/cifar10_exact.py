"""ResNet-20 on CIFAR-10, 4 workers, 8 epochs, nothing compressed: the baseline.

Reproduces: nothing published; a short schedule that compares methods fairly.
Expected:   86.0 % test accuracy (85.96 % with seed 0).
Cost:       15 minutes on 2 CPU cores.
Command:    python train.py --config=configs/cifar10_exact.py --workdir=runs/exact8
"""

from ml_collections import ConfigDict

from configs import cifar10


def get_config() -> ConfigDict:
    config = cifar10.get_config()
    config.exchange = "exact"
    config.memory = "none"
    config.train_for = "8 epochs"
    config.schedule = "piecewise_linear(epochs=[0, 1, 8], values=[0.1, 1, 0])"
    return config
