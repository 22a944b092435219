"""Two hosts of two workers: dense inside a host, top-k between hosts.

Reproduces: nothing published.
Expected:   TODO
Cost:       TODO
Command:    python train.py --config=configs/hierarchical.py --workdir=runs/hierarchical
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.exchange = "hierarchical(outer=gather, per_host=2)"
    config.compressor = "top_k(keep=0.02)"
    return config
