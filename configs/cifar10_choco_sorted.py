"""CHOCO-SGD with signs on a ring of 8 workers, each of which sees one or two classes.

Reproduces: the hardest case of Koloskova et al., arXiv:1907.09356, in small.
Expected:   38.98 % test accuracy of the mean model with seed 0, 19.8 % the worst
            worker's: BatchNorm of one class does not fit the others.
Cost:       a quarter to half an hour on 2 CPU cores.
Command:    python train.py --config=configs/cifar10_choco_sorted.py \
            --workdir=runs/sorted
Baseline:   configs/cifar10_choco.py
"""

from ml_collections import ConfigDict

from configs import cifar10_choco


def get_config() -> ConfigDict:
    config = cifar10_choco.get_config()
    config.partition = "sorted"
    return config
