"""CHOCO-SGD where workers see unlike mixtures of classes; step size tuned.

Reproduces: nothing published.
Expected:   98.06 % test accuracy of the mean model with seed 0, 97.5 % the worst
            worker's; 5.0 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/choco_dirichlet.py --workdir=runs/dirichlet
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "choco(gamma='tuned')"
    config.topology = "hypercube"
    config.compressor = "top_k(keep=0.1)"
    config.partition = "dirichlet(alpha=1)"
    return config
