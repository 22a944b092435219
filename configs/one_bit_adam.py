"""1-bit Adam: two dense epochs learn the variance, then signs of a momentum.

Reproduces: nothing published.
Expected:   98.9 % test accuracy (98.89 % with seed 0), 6.0 times fewer bytes, the two
            dense epochs included.
Cost:       about a minute on 2 CPU cores.
Command:    python train.py --config=configs/one_bit_adam.py --workdir=runs/one_bit_adam
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.exchange = "two_phase"
    config.compressor = "sign"
    config.memory = "shared_momentum(beta=0.9) | error_feedback"
    config.optimizer = "one_bit_adam"
    config.dense_for = "2 epochs"
    config.learning_rate = 3e-3
    config.weight_decay = 0.01  # decoupled
    config.scope = "only_large(min_size=256)"
    return config
