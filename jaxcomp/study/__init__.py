"""Questions about methods, answered with small experiments: what the notebooks use.

    points = study.sweep(gradient, "top_k(keep={})", (0.01, 0.1))
    print(study.table(points))

Everything runs on one device, where workers are simulated by vmap. A gradient is any
tree of arrays: that of the small run in `study.digits`, or one's own by `study.load`.
"""

from jaxcomp.study.consensus import Consensus, consensus, step_sizes
from jaxcomp.study.digits import Digits, digits
from jaxcomp.study.errors import (
    Point,
    frontier,
    measure,
    round_trip,
    shannon_bound,
    sweep,
)
from jaxcomp.study.files import load, save
from jaxcomp.study.layers import Layer, layers
from jaxcomp.study.regression import Regression, regression
from jaxcomp.study.spectra import Spectrum, power_sgd_errors, spectra
from jaxcomp.study.table import table
from jaxcomp.study.training import History, gradients, train

__all__ = [
    "Consensus",
    "Digits",
    "History",
    "Layer",
    "Point",
    "Regression",
    "Spectrum",
    "consensus",
    "digits",
    "frontier",
    "gradients",
    "layers",
    "load",
    "measure",
    "power_sgd_errors",
    "regression",
    "round_trip",
    "save",
    "shannon_bound",
    "spectra",
    "step_sizes",
    "sweep",
    "table",
    "train",
]
