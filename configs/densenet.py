"""DenseNet-BC of 22 layers on digits; the top 2 % of gradients.

Reproduces: nothing published; the model is that of Huang et al., shallow.
Expected:   96.9 % test accuracy with seed 0, 1.8 times fewer bytes.
Cost:       two minutes and a half on 2 CPU cores, most of it compiling.
Command:    python train.py --config=configs/densenet.py --workdir=runs/densenet
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.model = "densenet(depth=22, growth=8)"
    config.compressor = "top_k(keep=0.02)"
    config.scope = "only_large(min_size=1000)"
    config.train_for = "10 epochs"
    config.learning_rate = 0.05
    return config
