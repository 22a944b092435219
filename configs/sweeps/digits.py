"""Eight ways to send gradients of handwritten digits, with three seeds each.

Reproduces: nothing published; it shows how a sweep is written.
Expected:   at the best epoch of 8 and with seeds 0 to 2, `exact` reaches 98.3, 97.2 and
            97.2 % test accuracy, and top-k 96.9, 95.8 and 94.4 %.
Cost:       24 runs, each of which takes 30 seconds of one CPU core.
Command:    jaxcomp sweep configs/sweeps/digits.py
"""

from jaxcomp.cli.sweeps import Sweep, product

METHODS = {
    "exact": {"exchange": "exact", "memory": "none"},
    "top-k": {"compressor": "top_k(keep=0.02)"},
    "top-k, 4 bits": {"compressor": "top_k(keep=0.02) | qsgd(levels=7, damped=True)"},
    "DGC": {
        "compressor": "top_k(keep=0.02)",
        "memory": "dgc(momentum=0.9, nesterov=True)",
        "optimizer": "dgc_sgd(momentum=0.9, nesterov=True)",
    },
    "signs": {
        "compressor": "sign",
        "optimizer": "sgd(momentum=0)",
        "learning_rate": 0.3,
    },
    "PowerSGD": {"exchange": "power_sgd(rank=2)"},
    "4 bits, two phases": {
        "exchange": "two_phase",
        "compressor": "qsgd(levels=7, norm='max')",
        "memory": "none",
    },
    "DiLoCo": {
        "mixer": "diloco(h=16, rate=0.7, momentum=0.5)",
        "compressor": "qsgd(levels=7, norm='max')",
        "memory": "none",
    },
}


def get_sweep() -> Sweep:
    return Sweep(
        config="configs/default.py",
        always={"train_for": "8 epochs"},
        settings=product(method=METHODS, seed=range(3)),
    )
