"""Aligned psum: workers agree on the places, so only values are summed."""

import functools

from jaxcomp import compressors
from jaxcomp.core.coding.payloads import map_values
from jaxcomp.core.specs import SpecError
from jaxcomp.core.trees import spec_of
from jaxcomp.core.types import Axis, Exchange, Payload, Tree
from jaxcomp.exchanges._common import mean_of_payloads
from jaxcomp.parallel import collectives
from jaxcomp.scope import Plan, lift


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
        raise SpecError(
            f"needs a compressor whose places follow from the key alone, and "
            f"{codec.name!r} is not one. Valid: {', '.join(valid)}"
        )

    def mean(payload: Payload, sent: Tree) -> Tree:
        values = functools.partial(collectives.mean_of_all, axis=axis)
        return codec.decompress(map_values(values, payload), spec_of(sent))

    return mean_of_payloads("aligned_psum", plan, codec, axis, mean, is_aligned=True)
