"""Distributed Lion: signs of a blend of local momentum and gradient, by majority.

Reproduces: nothing published.
Expected:   98.3 % test accuracy (98.33 % with seed 0), 20.0 times fewer bytes.
Cost:       about a minute on 2 CPU cores.
Command:    python train.py --config=configs/lion.py --workdir=runs/lion
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.exchange = "majority_vote"
    config.memory = "local_momentum(beta=0.99, blend=0.9)"
    config.optimizer = "sgd(momentum=0)"
    config.learning_rate = 1e-3
    config.weight_decay = 0.05  # decoupled: it does not pass through the signs
    return config
