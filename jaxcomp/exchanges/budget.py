"""Budget: a fixed number of bits a step, divided among tensors by measured errors."""

import functools
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp import collectives
from jaxcomp.base import Array, Averaged, Axis, Clock, Exchange, State, Tree, ticked
from jaxcomp.bounds import leaf_choices, leaf_contractions
from jaxcomp.coding.message import fuse, split
from jaxcomp.coding.payloads import Dense
from jaxcomp.compressors import make
from jaxcomp.exchanges import _ladder
from jaxcomp.exchanges._assignment import assign
from jaxcomp.exchanges._common import with_method
from jaxcomp.infos import measure
from jaxcomp.scope import Plan, to_arrays, to_tree
from jaxcomp.specs import Call, Count, Pipe, Shown, method
from jaxcomp.trees import spec_of, vary_like

__all__ = ["BudgetState", "budget"]


class BudgetState(NamedTuple):
    """State of `budget`, the same on all workers."""

    clock: Clock
    due: Array  # [] int32: the step from which on all options are to be measured
    choices: Array  # [groups] int32: places on the ladder


@method("bits_per_step", given=2)
def budget(
    name: str,
    plan: Plan,
    axis: Axis,
    bits_per_step: Count,
    ladder: Annotated[
        Sequence[str | Call | Pipe],
        Shown(lambda ladder, _: repr(_ladder.names_of(ladder))),
    ] = _ladder.LADDER,
    every: Count = 100,
) -> Exchange:
    """Divide the bits of a message among the tensors, so that the error is small.

    mean = (1/N) sum_i D(C(g_i)), as in `gather`. Each vector of the plan has a
    compressor of its own out of a ladder. The choice minimises, greedily,
    sum_groups (1/N) sum_i |g_i - C(g_i)|^2, where a message has at most `bits_per_step`
    bits.

    At step 0, and then every so many steps, each worker measures all options on its
    gradient and sends the errors in its message. All workers solve the same small
    problem with them, and the result holds for the next steps. Until then each vector
    has its cheapest option. If the step of a measurement is dense, zero, not finite or
    not applied, the next step measures instead. The choices are data and the message
    has one size, so another choice compiles nothing anew.

    Args:
      plan: which tensors are compressed as one vector. Those that it sends without
        loss, such as the small ones under `only_large`, are sent dense. Its other
        compressors are not used; the ladder takes their place.
      axis: the mapped axis.
      bits_per_step: size of a worker's message, everything included. The message is
        smaller if even the dearest options need fewer bits.
      ladder: compressors without state, from cheap to dear.
      every: steps from one choice to the next.

    Example:
      >>> from jaxcomp.scope import make_plan
      >>> plan, ladder = make_plan("per_leaf", "sign"), ["sign", "cast"]
      >>> exchange = budget(plan, "workers", 4096, ladder)
      >>> tree = {"a": jnp.ones((2, 64)), "b": jnp.ones((2, 64)).at[:, 0].set(9.0)}
      >>> step = lambda x: exchange.average(x, exchange.init(x), jax.random.key(0))
      >>> out = jax.jit(jax.vmap(step, axis_name="workers"))(tree)
      >>> out.state.choices[0].tolist()  # sign loses nothing of a
      [0, 1]

    References:
      Alimohammadi et al., L-GreCo: Layerwise-Adaptive Gradient Compression for
      Efficient and Accurate Deep Learning, arXiv:2210.17357, 2022. It minimises the
      bits at a given error, by dynamic programming. Here the bits are given, because
      buffers have a fixed size, and a greedy choice is quick enough to run in a step.
    """
    options = _ladder.options_of(ladder)

    def layout_of(tree: Tree) -> _ladder.Layout:
        return _ladder.lay_out(plan, options, bits_per_step, spec_of(tree))

    def init(tree: Tree) -> State:
        cheapest = np.argmin(layout_of(tree).words, axis=1)
        choices = jnp.asarray(cheapest, jnp.int32)
        return BudgetState(Clock(jnp.int32(0)), jnp.int32(0), choices)

    def average(tree: Tree, state: BudgetState, key: Array) -> Averaged:
        spec, layout = spec_of(tree), layout_of(tree)
        step, due, choices = state.clock.step, state.due, state.choices
        own_key = jax.random.fold_in(key, collectives.index(axis))
        keys = [jax.random.fold_in(own_key, group.number) for group in layout.chosen]
        vectors, dense = to_arrays(tree, layout.chosen), to_arrays(tree, layout.dense)

        # No collective inside: XLA cannot know that all workers take the same branch.
        is_measured = step >= due
        own_errors = jax.lax.cond(
            is_measured,
            lambda: _ladder.errors_of(options, vectors, keys),
            lambda: vary_like(jnp.zeros(layout.words.shape, jnp.float32), vectors),
        )

        # A group is written with its padding, which the next group overwrites; that of
        # the last group lies behind the message.
        widths = layout.words.max(axis=1)
        sizes = jnp.asarray(layout.words)[np.arange(len(widths)), choices]
        places = layout.head_words + jnp.cumsum(sizes) - sizes
        buffer = jnp.zeros(layout.size + widths.max(), jnp.uint32)
        buffer = buffer.at[: layout.head_words].set(fuse((own_errors, dense)))
        sent = []
        for i, x in enumerate(vectors):
            branches = [_ladder.encoder(c, x, keys[i], widths[i]) for c in options]
            words, x_hat = jax.lax.switch(choices[i], branches)
            buffer = jax.lax.dynamic_update_slice(buffer, words, (places[i],))
            sent.append(x_hat)
        messages = collectives.gather(buffer[: layout.size], axis)

        count = messages.shape[0]
        heads = messages[:, : layout.head_words]
        errors, arrived = jax.vmap(lambda row: split(row, layout.head))(heads)
        messages = jnp.pad(messages, ((0, 0), (0, widths.max())))
        none = make("none")
        sums = [none.decompress_sum(Dense(rows), rows[0]) for rows in arrived]
        for i, x in enumerate(vectors):
            shape = (count, widths[i])
            rows = jax.lax.dynamic_slice(messages, (jnp.int32(0), places[i]), shape)
            pairs = zip(options, layout.payloads[i], strict=True)
            branches = [_ladder.adder(option, payload, x) for option, payload in pairs]
            sums.append(jax.lax.switch(choices[i], branches, rows))

        # Relative to the largest, so that squares stay in range.
        peak = jnp.max(errors)
        shares = errors / jnp.where(peak == 0, 1.0, peak)
        errors = jnp.mean(jnp.square(shares), axis=0)
        limit = layout.size - layout.head_words
        due, choices = jax.lax.cond(
            # A NaN tells nothing about the options, and every worker sees it in the
            # mean. Neither does a gradient of zeros.
            is_measured & (peak > 0) & jnp.all(jnp.isfinite(errors)),
            lambda: ((step // every + 1) * every, assign(errors, layout.words, limit)),
            lambda: (due, choices),
        )
        groups = [*layout.dense, *layout.chosen]
        mean = to_tree([total / count for total in sums], groups, spec)
        own_sent = to_tree([*dense, *sent], groups, spec)
        info = measure(tree, own_sent)
        used = (layout.head_words + jnp.sum(sizes)).astype(jnp.float32)
        info = info._replace(extra={**info.extra, "budget_words_used": used})
        new = BudgetState(ticked(state.clock), due, choices)
        return Averaged(mean, own_sent, new, info)

    scope = plan.title.rpartition(": ")[0]  # its compressor is not used
    facts = _ladder.worst_plan(plan, options)
    return Exchange(
        with_method(name, scope) if scope else name,
        init=init,
        average=average,
        axis=axis,
        figures=("budget_words_used",),
        contraction=functools.partial(leaf_contractions, facts),
        chooses=functools.partial(leaf_choices, facts),
    )
