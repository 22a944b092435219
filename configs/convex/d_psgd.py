"""D-PSGD on a ring: whole models to both neighbours, the baseline of the others.

Reproduces: the uncompressed line of arXiv:1902.00340, other data.
Expected:   f - f* = 1.6e-5 (8.6e-6 to 2.6e-5, 3 seeds) from 0.44; 14.5 kB a step.
Cost:       half a minute of one CPU core, one seed.
Command:    python train.py --config=configs/convex/d_psgd.py --workdir=runs/sgd
"""

from ml_collections import ConfigDict

from configs.convex import base


def get_config() -> ConfigDict:
    config = base.get_config()
    config.mixer = "d_psgd"
    config.compressor = "none"
    return config
