"""Logistic regression on the pixels of digits; signs of the gradients.

Reproduces: nothing published; a linear model of ten classes.
Expected:   not measured yet.
Cost:       minutes on 2 CPU cores; not measured.
Command:    python train.py --config=configs/logistic.py --workdir=runs/logistic
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.model = "logistic"
    config.compressor = "sign"
    config.augment = ""
    config.learning_rate = 0.05
    return config
