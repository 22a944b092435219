"""Budget: each tensor gets as many bits as its measured error asks for."""

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import collectives
from jaxcomp.base import (
    Array,
    Averaged,
    Axis,
    Clock,
    Compressor,
    Exchange,
    Spec,
    State,
    Tree,
    ticked,
)
from jaxcomp.bounds import leaf_choices, leaf_contractions, worst
from jaxcomp.coding.message import fuse, split
from jaxcomp.coding.payloads import Dense
from jaxcomp.compressors import make
from jaxcomp.exchanges._assignment import assign
from jaxcomp.exchanges._common import with_method
from jaxcomp.infos import measure
from jaxcomp.scope import Group, Plan, groups_of, to_arrays, to_tree
from jaxcomp.scope.plans import joined_spec
from jaxcomp.specs import Call, Count, Pipe, Shown, SpecError, method
from jaxcomp.trees import norm, spec_of, vary_like

__all__ = ["BudgetState", "budget"]

LADDER = (
    "sign",
    "eden(bits=2, unbiased=False)",
    "block_scaled(bits=4, block=32)",
    "block_scaled(bits=8, block=32)",
)


class BudgetState(NamedTuple):
    """State of `budget`, the same on all workers."""

    clock: Clock
    due: Array  # [] int32: the step from which on all options are to be measured
    choices: Array  # [groups] int32: places on the ladder


class _Layout(NamedTuple):
    """What stands where in the message; it follows from shapes alone."""

    dense: list[Group]
    chosen: list[Group]  # those with a choice
    payloads: list[list[Spec]]  # of each chosen group, for each option
    head: Spec  # what precedes the chosen groups: (errors, dense tensors)
    head_words: int
    words: np.ndarray  # [groups, options] int32
    size: int  # words of the message


@method("bits_per_step", given=2)
def budget(
    name: str,
    plan: Plan,
    axis: Axis,
    bits_per_step: Count,
    ladder: Annotated[
        Sequence[str | Call | Pipe],
        Shown(lambda ladder, _: repr(tuple(c.name for c in _options(ladder)))),
    ] = LADDER,
    every: Count = 100,
) -> Exchange:
    """Divide a number of bits among the tensors by what each option of a ladder errs.

    mean = (1/N) sum_i D(C(g_i)), as in `gather`, with a compressor for each vector of
    the plan that minimises, greedily, sum_groups (1/N) sum_i |g_i - C(g_i)|^2 subject
    to the bits of one message being at most `bits_per_step`. At step 0 and every so
    many steps all options are measured on the gradient at hand, the errors travel in
    the message itself, and every worker solves the same small problem for the steps to
    come; until then each vector has its cheapest option. Where that step is dense, not
    finite or not applied, the next one is measured in its place. Choices are data, not
    shapes: the message has one size, and nothing is compiled again.

    Args:
      plan: which tensors are compressed as one vector. Those that it sends without
        loss, such as the small ones under `only_large`, are sent dense; its other
        compressors are not used, the ladder stands for them.
      axis: the mapped axis.
      bits_per_step: size of a worker's message, everything included. What even the
        dearest choice would leave empty is not sent.
      ladder: compressors without state, from cheap to dear.
      every: steps from one choice to the next.

    Example:
        >>> from jaxcomp.scope import make_plan
        >>> plan, ladder = make_plan("per_leaf", "sign"), ["sign", "cast"]
        >>> exchange = budget(plan, "workers", 4096, ladder)
        >>> tree = {"a": jnp.ones((2, 64)), "b": jnp.ones((2, 64)).at[:, 0].set(9.0)}
        >>> step = lambda x: exchange.average(x, exchange.init(x), jax.random.key(0))
        >>> out = jax.jit(jax.vmap(step, axis_name="workers"))(tree)
        >>> out.state.choices[0].tolist()  # sign sends a as it is
        [0, 1]

    References:
      Alimohammadi et al., L-GreCo: Layerwise-Adaptive Gradient Compression for
      Efficient and Accurate Deep Learning, arXiv:2210.17357, 2022. It asks for the
      fewest bits at a given error, by dynamic programming; here the bits are given, as
      buffers have to be, and a greedy choice runs in the step.
    """
    options = _options(ladder)

    def layout_of(tree: Tree) -> _Layout:
        return _lay_out(plan, options, bits_per_step, spec_of(tree))

    def init(tree: Tree) -> State:
        cheapest = np.argmin(layout_of(tree).words, axis=1)
        choices = jnp.asarray(cheapest, jnp.int32)
        return BudgetState(Clock(jnp.int32(0)), jnp.int32(0), choices)

    def average(tree: Tree, state: BudgetState, key: Array) -> Averaged:
        spec, layout = spec_of(tree), layout_of(tree)
        step, due, choices = state.clock.step, state.due, state.choices
        own_key = jax.random.fold_in(key, collectives.index(axis))
        keys = [jax.random.fold_in(own_key, i) for i in range(len(layout.chosen))]
        vectors, dense = to_arrays(tree, layout.chosen), to_arrays(tree, layout.dense)

        # Without a collective inside: XLA cannot know that all workers take it.
        is_measured = step >= due
        own_errors = jax.lax.cond(
            is_measured,
            lambda: _errors(options, vectors, keys),
            lambda: vary_like(jnp.zeros(layout.words.shape, jnp.float32), vectors),
        )

        # The next group overwrites what pads this one; behind the last there is room.
        widths = layout.words.max(axis=1)
        sizes = jnp.asarray(layout.words)[np.arange(len(widths)), choices]
        places = layout.head_words + jnp.cumsum(sizes) - sizes
        buffer = jnp.zeros(layout.size + widths.max(), jnp.uint32)
        buffer = buffer.at[: layout.head_words].set(fuse((own_errors, dense)))
        sent = []
        for i, x in enumerate(vectors):
            branches = [_encoder(c, x, keys[i], widths[i]) for c in options]
            words, x_hat = jax.lax.switch(choices[i], branches)
            buffer = jax.lax.dynamic_update_slice(buffer, words, (places[i],))
            sent.append(x_hat)
        messages = collectives.gather(buffer[: layout.size], axis)

        count = messages.shape[0]
        heads = messages[:, : layout.head_words]
        errors, arrived = jax.vmap(lambda row: split(row, layout.head))(heads)
        messages = jnp.pad(messages, ((0, 0), (0, widths.max())))
        none = make("none")
        means = [none.decompress_sum(Dense(rows), rows[0]) for rows in arrived]
        for i, x in enumerate(vectors):
            shape = (count, widths[i])
            rows = jax.lax.dynamic_slice(messages, (jnp.int32(0), places[i]), shape)
            pairs = zip(options, layout.payloads[i], strict=True)
            branches = [_adder(c, payload, x) for c, payload in pairs]
            means.append(jax.lax.switch(choices[i], branches, rows))

        # Of the largest, so that squares stay in range.
        peak = jnp.max(errors)
        shares = errors / jnp.where(peak == 0, 1.0, peak)
        errors = jnp.mean(jnp.square(shares), axis=0)
        limit = layout.size - layout.head_words
        due, choices = jax.lax.cond(
            # From a NaN nothing can be learned; it is seen in the mean.
            is_measured & jnp.all(jnp.isfinite(errors)),
            lambda: (
                (step // every + 1) * every,
                assign(errors, layout.words, limit),
            ),
            lambda: (due, choices),
        )
        groups = [*layout.dense, *layout.chosen]
        mean, own_sent = (
            to_tree(arrays, groups, spec)
            for arrays in ([m / count for m in means], [*dense, *sent])
        )
        info = measure(tree, own_sent)
        used = layout.head_words + jnp.sum(sizes)
        words_used = {"budget_words_used": used.astype(jnp.float32)}
        info = info._replace(extra={**info.extra, **words_used})
        new = BudgetState(ticked(state.clock), due, choices)
        return Averaged(mean, own_sent, new, info)

    scope = plan.title.rpartition(": ")[0]  # its compressor is not used
    return Exchange(
        with_method(name, scope) if scope else name,
        init=init,
        average=average,
        axis=axis,
        figures=("budget_words_used",),
        contraction=functools.partial(
            leaf_contractions, plan, of=functools.partial(_contraction, options)
        ),
        chooses=functools.partial(
            leaf_choices, plan, of=functools.partial(_chooses, options)
        ),
    )


def _contraction(
    options: list[Compressor], compressor: Compressor, spec: Spec
) -> float | None:
    """Of what is not sent dense, that of the worst option."""
    if compressor.contraction(spec) == 1:
        return 1.0
    return worst(option.contraction(spec) for option in options)


def _chooses(options: list[Compressor], compressor: Compressor, spec: Spec) -> bool:
    """Whether any option sends some elements only."""
    if compressor.contraction(spec) == 1:
        return False
    return any(option.support(spec) < spec.size for option in options)


def _options(ladder: Sequence[str | Call | Pipe]) -> list[Compressor]:
    if isinstance(ladder, str | Call | Pipe | Compressor) or not len(ladder):
        raise SpecError(f"ladder is a list such as {list(LADDER)}, not {ladder!r}")
    options = [make(spec) for spec in ladder]
    probe = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    for option in options:
        if jax.tree.leaves(option.init(probe)):
            message = (
                f"budget changes compressors on the way, so it takes those without "
                f"state, and {option.name!r} has one"
            )
            raise SpecError(message)
    return options


def _lay_out(
    plan: Plan, options: list[Compressor], bits_per_step: int, spec: Spec
) -> _Layout:
    dense, chosen = [], []
    for group in groups_of(plan, spec):
        is_lossless = group.compressor.contraction(joined_spec(group)) == 1
        (dense if is_lossless else chosen).append(group)
    if dense and not chosen:
        message = (
            f"every tensor is sent dense by {plan.title!r}, so that budget has nothing "
            f"to choose: name a compressor that loses something, such as 'sign'"
        )
        raise SpecError(message)

    def sent(option: Compressor, group: Group) -> Spec:
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(option.compress, joined_spec(group), (), key)[0]

    payloads = [[sent(option, group) for option in options] for group in chosen]
    counts = [[jax.eval_shape(fuse, p).size for p in row] for row in payloads]
    words = np.array(counts, np.int32).reshape(len(chosen), len(options))
    table = jax.ShapeDtypeStruct(words.shape, jnp.float32)
    head = (table, [joined_spec(group) for group in dense])
    head_words = jax.eval_shape(fuse, head).size
    least = 32 * (head_words + int(words.min(axis=1).sum()))
    if bits_per_step < least:
        message = (
            f"bits_per_step={bits_per_step} is too little: the cheapest options take "
            f"{least} bits, of which {32 * words.size} are the table of errors and "
            f"{32 * (head_words - words.size)} tensors that are sent dense"
        )
        raise SpecError(message)
    size = min(bits_per_step // 32, head_words + int(words.max(axis=1).sum()))
    return _Layout(dense, chosen, payloads, head, head_words, words, size)


def _errors(options: list[Compressor], vectors: Sequence[Array], keys: list) -> Array:
    """|x - C(x)| of every vector with every option; its square need not be a float."""

    def error(option: Compressor, x: Array, key: Array) -> Array:
        payload, _ = option.compress(x, (), key)
        x_hat = option.decompress(payload, x).astype(jnp.float32)
        return norm(x.astype(jnp.float32) - x_hat)

    pairs = zip(vectors, keys, strict=True)
    return jnp.stack([jnp.stack([error(c, x, k) for c in options]) for x, k in pairs])


def _encoder(
    option: Compressor, x: Array, key: Array, width: int
) -> Callable[[], tuple[Array, Array]]:
    """What is sent of x, padded to `width`, and what it decodes to."""

    def encode() -> tuple[Array, Array]:
        payload, _ = option.compress(x, (), key)
        words = fuse(payload)
        padding = (0, width - words.size)
        return jnp.pad(words, padding), option.decompress(payload, x)

    return encode


def _adder(option: Compressor, payload: Spec, x: Array) -> Callable[[Array], Array]:
    """The sum of what all workers sent of x."""

    def add(rows: Array) -> Array:
        return option.decompress_sum(jax.vmap(lambda r: split(r, payload))(rows), x)

    return add
