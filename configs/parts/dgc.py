"""Deep Gradient Compression to a thousandth, warmed up over the first four epochs.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/dgc.py
"""

from ml_collections import ConfigDict

from configs.parts import top_k


def update(config: ConfigDict, keep: str = "0.001") -> None:
    top_k.update(config, keep)
    config.keep_warmup = "exponential(epochs=4)"
    config.memory = "dgc(momentum=0.9, nesterov=True)"
    config.optimizer = "dgc_sgd(momentum=0.9, nesterov=True)"
