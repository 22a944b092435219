"""WideResNet-10-2 with dropout on digits; signs of the gradients, in buckets.

Reproduces: nothing published; the model is that of Zagoruyko and Komodakis, shallow.
Expected:   96.9 % test accuracy with seed 0, 16 times fewer bytes.
Cost:       a minute and a half on 2 CPU cores, half of it compiling.
Command:    python train.py --config=configs/wide_resnet.py --workdir=runs/wide_resnet
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.model = "wide_resnet(depth=10, width=2, dropout=0.1)"
    config.compressor = "sign"
    config.scope = "bucketed(bytes=100_000)"
    config.train_for = "10 epochs"
    config.learning_rate = 0.05
    return config
