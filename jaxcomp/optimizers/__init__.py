"""Whole optimisers whose workers exchange something compressed, for any optax chain.

    tx = optax.chain(optax.clip_by_global_norm(1.0), signum(1e-3, exchange, seed=0))

Each is plain optax around an exchange without a memory: it puts its own momentum and
its own memory there. Map the step with `jaxcomp.pmap` or `jaxcomp.shard_map`. Where the
mean is taken outside the chain, by `jaxcomp.pmean`, `add_decayed_momentum` and
`scale_by_one_bit_adam` are what stands in the chain after it.
"""

from jaxcomp.optimizers._common import scale_by_rate
from jaxcomp.optimizers.dgc_sgd import add_decayed_momentum, dgc_sgd
from jaxcomp.optimizers.ef_signsgd import ef_signsgd
from jaxcomp.optimizers.lion import lion
from jaxcomp.optimizers.one_bit_adam import one_bit_adam, scale_by_one_bit_adam
from jaxcomp.optimizers.signum import signum

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
