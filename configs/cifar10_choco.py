"""CHOCO-SGD with signs on a ring of 8 workers, ResNet-20 on CIFAR-10.

Reproduces: Koloskova et al., arXiv:1907.09356, in small.
Expected:   82.39 % test accuracy of the mean model with seed 0, 82.0 % the worst
            worker's; 27.8 times fewer bytes.
Cost:       a quarter to half an hour on 2 CPU cores.
Command:    python train.py --config=configs/cifar10_choco.py --workdir=runs/choco
Baseline:   configs/cifar10_exact8.py
"""

from ml_collections import ConfigDict

from configs import cifar10_exact8


def get_config() -> ConfigDict:
    config = cifar10_exact8.get_config()
    config.mixer = "choco(gamma=0.5)"
    config.topology = "ring"
    config.exchange = ""
    config.compressor = "sign"
    config.memory = ""
    config.scope = "per_leaf"
    config.partition = "random(reshuffle=True)"
    return config
