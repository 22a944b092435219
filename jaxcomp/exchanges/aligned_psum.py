"""Aligned psum: workers agree on the places, so only values are summed."""

import functools

from jaxcomp import collectives, compressors
from jaxcomp.base import Array, Averaged, Axis, Exchange, State, Tree
from jaxcomp.bounds import leaf_choices, leaf_contractions
from jaxcomp.coding.payloads import map_values
from jaxcomp.infos import figure_names, measure
from jaxcomp.scope import Plan, lift
from jaxcomp.specs import SpecError
from jaxcomp.trees import spec_of

__all__ = ["aligned_psum"]


def aligned_psum(plan: Plan, axis: Axis) -> Exchange:
    """Sum the values of payloads whose places follow from the shared key.

    mean = D((1/N) sum_i values_i), by one all-reduce of the values alone: traffic does
    not grow with N and no index is sent. Needs a compressor that declares `aligned`.

    Args:
      plan: which tensors are compressed as one vector, and how; aligned.
      axis: the mapped axis.

    References:
      Dutta et al., On the Discrepancy between the Theoretical Analysis and Practical
      Implementations of Compressed Communication, arXiv:1911.08250, 2020 (its code).
    """
    codec = lift(plan)
    if not codec.aligned:
        valid = [n for n, make in compressors.REGISTRY.items() if make().aligned]
        message = (
            f"needs a compressor whose places follow from the key alone, and "
            f"{codec.name!r} is not one. Valid: {', '.join(valid)}"
        )
        raise SpecError(message)

    def init(tree: Tree) -> State:
        # The same on all workers: it decides on places.
        return codec.init(spec_of(tree))

    def average(tree: Tree, state: State, key: Array) -> Averaged:
        spec = spec_of(tree)
        payload, codec_state = codec.compress(tree, state, key)
        values = functools.partial(collectives.mean_of_all, axis=axis)
        mean = codec.decompress(map_values(values, payload), spec)
        sent = codec.decompress(payload, spec)
        info = measure(tree, sent, codec, payload)
        return Averaged(mean, sent, codec_state, info)

    return Exchange(
        f"aligned_psum({codec.name})",
        init=init,
        average=average,
        axis=axis,
        figures=figure_names(codec),
        contraction=functools.partial(leaf_contractions, plan),
        chooses=functools.partial(leaf_choices, plan),
    )
