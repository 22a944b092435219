"""Aligned psum: workers agree on the places, so only values are summed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import compressors
from jaxcomp.base import (
    Array,
    Averaged,
    Compressor,
    Exchange,
    State,
    Tree,
    spec_of,
)
from jaxcomp.exchanges.common import measure
from jaxcomp.payloads import map_values

__all__ = ["aligned_psum"]


def aligned_psum(codec: Compressor, axis: str) -> Exchange:
    """Sum the values of payloads whose places follow from the shared key.

    mean = D((1/N) sum_i values_i), by one all-reduce of the values alone: traffic does
    not grow with N and no index is sent. Needs a compressor that declares `aligned`.

    Args:
      codec: compressor of trees, aligned.
      axis: name of the mapped axis.

    References:
      Dutta et al., On the Discrepancy between the Theoretical Analysis and Practical
      Implementations of Compressed Communication, arXiv:1911.08250, 2020 (its code).
    """
    if not codec.aligned:
        valid = [n for n, make in compressors.REGISTRY.items() if make().aligned]
        message = (
            f"needs a compressor whose places follow from the key alone, and "
            f"{codec.name!r} is not one. Valid: {', '.join(valid)}"
        )
        raise ValueError(message)

    def init(tree: Tree) -> State:
        # The same on all workers: it decides on places.
        return codec.init(spec_of(tree))

    def mean_of(values: list[Array]) -> list[Array]:
        """One all-reduce for all arrays, in the widest of their types."""
        dtype = functools.reduce(np.promote_types, [v.dtype for v in values])
        flat = jnp.concatenate([v.reshape(-1).astype(dtype) for v in values])
        sizes = np.cumsum([v.size for v in values])[:-1]
        parts = jnp.split(jax.lax.pmean(flat, axis), sizes)
        pairs = zip(parts, values, strict=True)
        return [p.reshape(v.shape).astype(v.dtype) for p, v in pairs]

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec = spec_of(tree)
        payload, codec_state = codec.compress(tree, state, key)
        mean = codec.decompress(map_values(mean_of, payload), spec)
        sent = codec.decompress(payload, spec)
        info = measure(tree, sent, codec, payload)
        return Averaged(mean, sent, codec_state, info)

    return Exchange(
        f"aligned_psum({codec.name})",
        init=init,
        average=average,
        axis=axis,
        figures=tuple(figure.name for figure in codec.figures),
    )
