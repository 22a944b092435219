"""Top-k with error feedback; of parts/top_k:0.001 each message keeps a thousandth.

Command: python train.py --config=configs/cifar10_exact.py,configs/parts/top_k.py:0.001
"""

from ml_collections import ConfigDict

from configs.parts import exact


def update(config: ConfigDict, keep: str = "0.01") -> None:
    exact.update(config)
    config.exchange = "gather"
    config.compressor = f"top_k(keep={keep})"
    config.memory = "error_feedback"
