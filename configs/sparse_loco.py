"""SparseLoCo: 8 steps alone, then 3 % of what was learnt, in 2 bits.

Reproduces: nothing published.
Expected:   98.2 % test accuracy of the mean model (98.33, 98.06 and 98.33 % with seeds
            0 to 2), 443 times fewer bytes.
Cost:       half a minute on 2 CPU cores.
Command:    python train.py --config=configs/sparse_loco.py --workdir=runs/sparse_loco
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.mixer = "sparse_loco(h=8)"
    config.compressor = (
        "top_k(keep=0.03) | qsgd(levels=1, norm='max', bucket=64, rounding='nearest')"
    )
    config.memory = "none"
    return config
