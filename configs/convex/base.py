"""Logistic regression on a ring of nine workers: what the other configs start from.

Reproduces: nothing by itself; it shows every setting, those of choco_top_k.py.
Expected:   f - f* = 2.9e-5 (2.3e-5 to 3.4e-5, 3 seeds) from 0.44; 192 B a step.
Cost:       two minutes on 2 CPU cores.
Command:    python train.py --config=configs/convex/base.py --workdir=runs/convex
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    """Every key there is for a convex run; docs/convex.md explains them."""
    config = ConfigDict()

    # --- What is solved ---------------------------------------------------------
    # breast_cancer | digits | libsvm(path='...') | synthetic(features=2000)
    config.problem = "digits(pairs=True)"
    config.regulariser = config_dict.placeholder(float)  # None: 1 / examples
    config.partition = "random"  # all | contiguous | dirichlet(alpha=0.1) | sorted

    # --- How the workers talk, all of them on one device ------------------------
    config.workers = 9
    config.mixer = "choco(gamma=0.05)"  # "" averages gradients with the exchange
    config.topology = "ring"  # see `jaxcomp topology`; "" where there is no mixer
    config.compressor = "top_k(keep=0.01)"
    config.exchange = ""  # without a mixer: exact | gather | ...
    config.memory = "none"  # of the exchange

    # --- Stochastic gradients ---------------------------------------------------
    config.batch_size = 9  # of all workers together
    # bottou(rate=1) | constant(rate=1) | decay(a=1, tau=2000) | epoch_decay(rate=1)
    config.learning_rate = "decay(a=2, tau=500)"
    config.average = "quadratic(tau=500)"  # final | linear(tau=1) | mean
    config.train_for = "40 epochs"  # or steps, or examples

    # --- The run ----------------------------------------------------------------
    config.seed = 0  # of the partition, the order of examples and compression
    config.seeds = 3  # repetitions: seed, seed + 1, ...
    config.eval_every = "0.5 epochs"
    config.checkpoint_every = "5 epochs"
    return config
