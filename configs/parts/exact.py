"""Gradients are averaged as they are: the method of the config before it is taken out.

Command: python train.py --config=configs/cifar10_dgc.py,configs/parts/exact.py
"""

from ml_collections import ConfigDict


def update(config: ConfigDict) -> None:
    config.exchange = "exact"
    config.compressor = "none"
    config.memory = "none"
    config.policy = ()
    config.mixer = config.topology = ""
    config.keep_warmup = config.dense_for = config.flush_every = ""
    # The memory of DGC has the momentum; without that memory it is the optimiser's.
    config.optimizer = str(config.optimizer).replace("dgc_sgd", "sgd")
