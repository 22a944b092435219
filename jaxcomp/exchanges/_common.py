"""What several exchanges need: own payloads, the report of one step, names."""

import jax

from jaxcomp import collectives
from jaxcomp.base import Array, Axis, Compressor, Payload, PerWorker, Tree

__all__ = [
    "compress_own",
    "with_method",
]


def compress_own(
    codec: Compressor, tree: Tree, state: PerWorker, key: Array, axis: Axis
) -> tuple[Payload, PerWorker]:
    """This worker's payload, with a key and a state of its own.

    Args:
      codec: compressor of trees.
      tree: of this worker.
      state: of the codec on this worker.
      key: the same on every worker.
      axis: the mapped axis.
    """
    own_key = jax.random.fold_in(key, collectives.index(axis))
    payload, new = codec.compress(tree, state.value, own_key)
    return payload, PerWorker(new)


def with_method(exchange: str, method: str) -> str:
    """The name of an exchange together with what it sends.

    Example:
        >>> with_method("gather", "sign"), with_method("two_phase(a=1)", "sign")
        ('gather(sign)', 'two_phase(a=1; sign)')
    """
    head, _, arguments = exchange.removesuffix(")").partition("(")
    return f"{head}({arguments + '; ' if arguments else ''}{method})"
