"""The ladder of compressors of `budget`, and the layout of its message."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.base import Array, Compressor, Payload, Spec
from jaxcomp.bounds import split_lossless, worst
from jaxcomp.coding.message import fuse, split
from jaxcomp.compressors import make
from jaxcomp.scope import Group, Leaf, Plan, groups_of
from jaxcomp.scope.plans import joined_spec
from jaxcomp.specs import Call, Pipe, SpecError
from jaxcomp.trees import norm, spec_of

__all__ = [
    "LADDER",
    "Layout",
    "adder",
    "encoder",
    "errors_of",
    "lay_out",
    "names_of",
    "options_of",
    "worst_plan",
]

LADDER = (
    "sign",
    "eden(bits=2, unbiased=False)",
    "block_scaled(bits=4, block=32)",
    "block_scaled(bits=8, block=32)",
)


class Layout(NamedTuple):
    """The order of the parts of a message; it follows from shapes alone."""

    dense: list[Group]
    chosen: list[Group]  # those with a choice of options
    payloads: list[list[Spec]]  # of each chosen group, for each option
    head: Spec  # what precedes the chosen groups: (errors, dense tensors)
    head_words: int
    words: np.ndarray  # [groups, options] int32
    size: int  # words of the message


def options_of(ladder: Sequence[str | Call | Pipe]) -> list[Compressor]:
    """The compressors of a ladder; refuses those with state."""
    if isinstance(ladder, str | Call | Pipe | Compressor) or not len(ladder):
        raise SpecError(f"ladder is a list such as {list(LADDER)}, not {ladder!r}")
    options = [make(spec) for spec in ladder]
    probe = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    for option in options:
        if jax.tree.leaves(option.init(probe)):
            raise SpecError(
                f"budget changes compressors on the way, so it takes those without "
                f"state, and {option.name!r} has one"
            )
    return options


def names_of(ladder: Sequence[str | Call | Pipe]) -> tuple[str, ...]:
    """The names of a ladder's compressors."""
    return tuple(option.name for option in options_of(ladder))


def worst_plan(plan: Plan, options: list[Compressor]) -> Plan:
    """The plan with the worst facts of all options, where it loses anything."""
    stand_in = options[0]._replace(
        contraction=lambda spec: worst(c.contraction(spec) for c in options),
        support=lambda spec: min(c.support(spec) for c in options),
    )

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        lossless, lossy = split_lossless(plan.groups(leaves))
        return lossless + [group._replace(compressor=stand_in) for group in lossy]

    return plan._replace(groups=groups)


def lay_out(
    plan: Plan, options: list[Compressor], bits_per_step: int, spec: Spec
) -> Layout:
    """The layout of a tree's message; refuses too few bits, and a plan without loss."""
    dense, chosen = split_lossless(groups_of(plan, spec))
    if dense and not chosen:
        raise SpecError(
            f"every tensor is sent dense by {plan.title!r}, so that budget has nothing "
            f"to choose: name a compressor that loses something, such as 'sign'"
        )

    def sent(option: Compressor, group: Group) -> Spec:
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(partial(_payload, option), joined_spec(group), key)

    payloads = [[sent(option, group) for option in options] for group in chosen]
    counts = [[jax.eval_shape(fuse, p).size for p in row] for row in payloads]
    words = np.array(counts, np.int32).reshape(len(chosen), len(options))
    table = jax.ShapeDtypeStruct(words.shape, jnp.float32)
    head = (table, [joined_spec(group) for group in dense])
    head_words = jax.eval_shape(fuse, head).size
    least = 32 * (head_words + int(words.min(axis=1).sum()))
    if bits_per_step < least:
        raise SpecError(
            f"bits_per_step={bits_per_step} is too little: the cheapest options take "
            f"{least} bits, of which {32 * words.size} are the table of errors and "
            f"{32 * (head_words - words.size)} tensors that are sent dense"
        )
    size = min(bits_per_step // 32, head_words + int(words.max(axis=1).sum()))
    return Layout(dense, chosen, payloads, head, head_words, words, size)


def errors_of(options: list[Compressor], vectors: Sequence[Array], keys: list) -> Array:
    """The error |x - C(x)| of each option on each vector, [vectors, options].

    Not its square, which may be too large for float32.
    """

    def error(option: Compressor, x: Array, key: Array) -> Array:
        payload = _payload(option, x, key)
        x_hat = option.decompress(payload, x).astype(jnp.float32)
        return norm(x.astype(jnp.float32) - x_hat)

    pairs = zip(vectors, keys, strict=True)
    return jnp.stack([jnp.stack([error(c, x, k) for c in options]) for x, k in pairs])


def _payload(option: Compressor, x: Array, key: Array) -> Payload:
    """What it sends; its state, such as that of a composition, holds no array."""
    return option.compress(x, option.init(spec_of(x)), key)[0]


def encoder(
    option: Compressor, x: Array, key: Array, width: int
) -> Callable[[], tuple[Array, Array]]:
    """A function that returns the message of x, padded to `width`, and its decoding."""

    def encode() -> tuple[Array, Array]:
        payload = _payload(option, x, key)
        words = fuse(payload)
        padding = (0, width - words.size)
        return jnp.pad(words, padding), option.decompress(payload, x)

    return encode


def adder(option: Compressor, payload: Spec, x: Array) -> Callable[[Array], Array]:
    """A function that decodes and adds the messages of all workers for x."""

    def add(rows: Array) -> Array:
        return option.decompress_sum(jax.vmap(lambda r: split(r, payload))(rows), x)

    return add
