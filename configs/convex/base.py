"""Logistic regression on a ring of nine workers: what the other configs start from.

Reproduces: nothing by itself; its settings are those of choco_top_k.py.
Expected:   f - f* = 2.8e-5 (2.3e-5 to 3.4e-5, 3 seeds) from 0.44; 192 B a step.
Cost:       half a minute of one CPU core, one seed.
Command:    python train.py --config=configs/convex/base.py --workdir=runs/convex
"""

from ml_collections import ConfigDict

from configs import default

EXAMPLES, WORKERS = 1797, 9  # of digits; one example of each worker a step


def get_config() -> ConfigDict:
    config = default.get_config()
    config.dataset = "digits(pairs=True)"
    config.model = "linear"
    config.partition = "random"
    config.augment = ""
    config.workers = WORKERS
    config.mapper = "vmap"  # simulates them all on one device
    config.mixer = "choco(gamma=0.05)"
    config.topology = "ring"
    config.exchange = ""
    config.memory = "none"
    config.compressor = "top_k(keep=0.01)"
    config.batch_size = WORKERS
    config.optimizer = "sgd(momentum=0)"
    config.warmup = ""
    config.weight_decay = 0.0  # f has its own
    config.loss_limit = 1e3
    config.train_for = "40 epochs"
    config.checkpoint_every = "10 epochs"
    config.keep_last = 1
    config.log_every = 100
    config.loggers = ("csv",)
    decay(config, a=2, tau=500)
    return config


def decay(config: ConfigDict, a: float, tau: float) -> None:
    """Step t has the rate a / (lam (t + tau)) with lam = 1 / examples.

    Iterates have the weights (t + tau)^2 in the average.
    """
    config.learning_rate = a * EXAMPLES / tau
    epochs = tau / (EXAMPLES // WORKERS)
    config.schedule = f"convex_decay(epochs={epochs:.6g})"
    config.task = f"logistic_regression(average='quadratic(tau={tau:g})')"
