"""Updates that travel along a hypercube and arrive up to 3 steps late.

Reproduces: nothing published.
Expected:   98.89 % test accuracy of the mean model with seed 0, 95.0 % the worst
            worker's; eight models travel, since only the delay is
            simulated.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/stale_hypercube.py --workdir=runs/cube
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.workers = 8
    config.exchange = ""
    config.memory = ""
    config.mixer = "stale_hypercube"
    config.topology = "hypercube(one_peer=True)"
    config.compressor = "none"
    return config
