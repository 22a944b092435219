"""Optimisers for any optax chain whose workers exchange compressed updates.

    tx = optax.chain(optax.clip_by_global_norm(1.0), signum(1e-3, exchange, seed=0))

Each of them is an optax transformation. It takes an exchange without a memory and adds
the momentum and the memory of its method. The step has to be mapped by `jaxcomp.pmap`
or `jaxcomp.shard_map`. If gradients are averaged before the chain, by `jaxcomp.pmean`,
the chain needs only `add_decayed_momentum` or `scale_by_one_bit_adam`.
"""

from jaxcomp.transforms.optimizers._chain import scale_by_rate
from jaxcomp.transforms.optimizers.dgc_sgd import add_decayed_momentum, dgc_sgd
from jaxcomp.transforms.optimizers.ef_signsgd import ef_signsgd
from jaxcomp.transforms.optimizers.lion import lion
from jaxcomp.transforms.optimizers.one_bit_adam import (
    one_bit_adam,
    scale_by_one_bit_adam,
)
from jaxcomp.transforms.optimizers.signum import signum

__all__ = [
    "add_decayed_momentum",
    "dgc_sgd",
    "ef_signsgd",
    "lion",
    "one_bit_adam",
    "scale_by_one_bit_adam",
    "scale_by_rate",
    "signum",
]
