"""Budget: a fixed number of bits a step, divided among tensors by measured errors."""

import functools
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxcomp.compressors import make
from jaxcomp.core import types
from jaxcomp.core.coding.payloads import Dense, fuse, split
from jaxcomp.core.specs import Call, Count, Pipe, Shown, SpecError, method
from jaxcomp.core.trees import norm, spec_of, vary_like
from jaxcomp.core.types import Array, Averaged, Axis, Clock, Compressor, Spec, Tree
from jaxcomp.exchanges._common import measure, with_method
from jaxcomp.parallel import collectives
from jaxcomp.scope import Group, Leaf, Plan, plans
from jaxcomp.scope.contraction import leaf_choices, leaf_contractions, split_lossless


def assign(errors: Array, words: np.ndarray, limit: int) -> Array:
    """Choose greedily an option for each group, by the error saved for each word.

    Each group begins with its cheapest option. Then the upgrade with the largest
    (error saved) / (words added) of those that still fit is made, until none fits. A
    larger limit never gives a larger error: at the first upgrade in which two limits
    differ, the upgrade that fits only the larger one saves more than all upgrades for
    which the smaller one has room.

    Args:
      errors: [groups, options] float32, finite.
      words: [groups, options] integers.
      limit: of the sum of all words; at least that of the cheapest options.

    Returns:
      [groups] int32.

    Example:
      >>> errors = jnp.array([[9.0, 1.0], [4.0, 3.0]])
      >>> words = np.array([[1, 5], [1, 5]])
      >>> [assign(errors, words, n).tolist() for n in (2, 6, 10)]
      [[0, 0], [1, 0], [1, 1]]
    """
    table = jnp.asarray(words, jnp.int32)
    group = np.arange(len(words))

    def scores(choices: Array) -> Array:
        """Error saved for each word by every upgrade; -inf where there is none."""
        now, error = table[group, choices], errors[group, choices]
        added, saved = table - now[:, None], error[:, None] - errors
        fits = jnp.sum(now) + added <= limit
        # Upgrades that add no words come first.
        rate = saved / jnp.maximum(added.astype(jnp.float32), np.float32(1e-30))
        return jnp.where(fits & (added >= 0) & (saved > 0), rate, -jnp.inf)

    def upgrade(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        choices, score = carry
        best = jnp.argmax(score).astype(jnp.int32)
        options = np.int32(words.shape[1])
        choices = choices.at[best // options].set(best % options)
        return choices, scores(choices)

    # The loop ends, because each upgrade lowers the error of its group.
    start = jnp.asarray(np.argmin(words, axis=1), jnp.int32)
    carry = (start, scores(start))
    return jax.lax.while_loop(lambda c: jnp.any(c[1] > -jnp.inf), upgrade, carry)[0]


LADDER = (
    "sign",
    "eden(bits=2, unbiased=False)",
    "block_scaled(bits=4, block=32)",
    "block_scaled(bits=8, block=32)",
)


class MessageLayout(NamedTuple):
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


def worst_plan(plan: Plan, options: list[Compressor]) -> Plan:
    """The plan with the worst facts of all options, where it loses anything."""
    stand_in = options[0]._replace(
        contraction=lambda spec: types.worst(c.contraction(spec) for c in options),
        support=lambda spec: min(c.support(spec) for c in options),
    )

    def groups(leaves: Sequence[Leaf]) -> list[Group]:
        lossless, lossy = split_lossless(plan.groups(leaves))
        return lossless + [group._replace(compressor=stand_in) for group in lossy]

    return plan._replace(groups=groups)


def lay_out(
    plan: Plan, options: list[Compressor], bits_per_step: int, spec: Spec
) -> MessageLayout:
    """The layout of a tree's message; refuses too few bits, and a plan without loss."""
    dense, chosen = split_lossless(plans.groups_of(plan, spec))
    if dense and not chosen:
        raise SpecError(
            f"every tensor is sent dense by {plan.title!r}, so that budget has nothing "
            f"to choose: name a compressor that loses something, such as 'sign'"
        )

    def sent(option: Compressor, group: Group) -> Spec:
        key = jax.eval_shape(lambda: jax.random.key(0))
        return jax.eval_shape(
            functools.partial(_payload, option), plans.joined_spec(group), key
        )

    payloads = [[sent(option, group) for option in options] for group in chosen]
    counts = [[jax.eval_shape(fuse, p).size for p in row] for row in payloads]
    words = np.array(counts, np.int32).reshape(len(chosen), len(options))
    table = jax.ShapeDtypeStruct(words.shape, jnp.float32)
    head = (table, [plans.joined_spec(group) for group in dense])
    head_words = jax.eval_shape(fuse, head).size
    least = 32 * (head_words + int(words.min(axis=1).sum()))
    if bits_per_step < least:
        raise SpecError(
            f"bits_per_step={bits_per_step} is too little: the cheapest options take "
            f"{least} bits, of which {32 * words.size} are the table of errors and "
            f"{32 * (head_words - words.size)} tensors that are sent dense"
        )
    size = min(bits_per_step // 32, head_words + int(words.max(axis=1).sum()))
    return MessageLayout(dense, chosen, payloads, head, head_words, words, size)


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


def _payload(option: Compressor, x: Array, key: Array) -> types.Payload:
    """What it sends; its state, such as that of a composition, holds no array."""
    return option.compress(x, option.init(spec_of(x)), key)[0]


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
        Shown(lambda ladder, _: repr(tuple(c.name for c in options_of(ladder)))),
    ] = LADDER,
    every: Count = 100,
) -> types.Exchange:
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
    options = options_of(ladder)
    way = _Budget(plan, axis, bits_per_step, options, every)
    scope = plan.title.rpartition(": ")[0]  # its compressor is not used
    facts = worst_plan(plan, options)
    return types.Exchange(
        with_method(name, scope) if scope else name,
        init=way.init,
        average=way.average,
        axis=axis,
        figures=("budget_words_used",),
        contraction=functools.partial(leaf_contractions, facts),
        chooses=functools.partial(leaf_choices, facts),
    )


class _Budget(NamedTuple):
    """The functions of the exchange; `budget` explains its arguments."""

    plan: Plan
    axis: Axis
    bits_per_step: int
    options: list[Compressor]
    every: int

    def layout(self, tree: Tree) -> MessageLayout:
        return lay_out(self.plan, self.options, self.bits_per_step, spec_of(tree))

    def init(self, tree: Tree) -> types.State:
        cheapest = np.argmin(self.layout(tree).words, axis=1)
        choices = jnp.asarray(cheapest, jnp.int32)
        return BudgetState(Clock(jnp.int32(0)), jnp.int32(0), choices)

    def average(self, tree: Tree, state: BudgetState, key: Array) -> Averaged:
        spec, layout = spec_of(tree), self.layout(tree)
        own_key = jax.random.fold_in(key, collectives.index(self.axis))
        keys = [jax.random.fold_in(own_key, group.number) for group in layout.chosen]
        vectors, dense = (
            plans.to_arrays(tree, layout.chosen),
            plans.to_arrays(tree, layout.dense),
        )

        # No collective inside: XLA cannot know that all workers take the same branch.
        is_measured = state.clock.step >= state.due
        own_errors = jax.lax.cond(
            is_measured,
            lambda: errors_of(self.options, vectors, keys),
            lambda: vary_like(jnp.zeros(layout.words.shape, jnp.float32), vectors),
        )

        # A group is written with its padding, which the next group overwrites; that of
        # the last group lies behind the message.
        widths = layout.words.max(axis=1)
        sizes = jnp.asarray(layout.words)[np.arange(len(widths)), state.choices]
        places = layout.head_words + jnp.cumsum(sizes) - sizes
        buffer = jnp.zeros(layout.size + widths.max(), jnp.uint32)
        buffer = buffer.at[: layout.head_words].set(fuse((own_errors, dense)))
        sent = []

        def encode(option: Compressor, i: int) -> tuple[Array, Array]:
            payload = _payload(option, vectors[i], keys[i])
            words = fuse(payload)
            padding = (0, widths[i] - words.size)
            return jnp.pad(words, padding), option.decompress(payload, vectors[i])

        for i in range(len(vectors)):
            branches = [functools.partial(encode, c, i) for c in self.options]
            words, x_hat = jax.lax.switch(state.choices[i], branches)
            buffer = jax.lax.dynamic_update_slice(buffer, words, (places[i],))
            sent.append(x_hat)
        messages = collectives.gather(buffer[: layout.size], self.axis)

        errors, sums = self.total(messages, layout, vectors, places, state.choices)
        due, choices = self.next_choices(errors, is_measured, layout, state)
        groups = [*layout.dense, *layout.chosen]
        mean = plans.to_tree([total / len(messages) for total in sums], groups, spec)
        own_sent = plans.to_tree([*dense, *sent], groups, spec)
        info = measure(tree, own_sent)
        used = (layout.head_words + jnp.sum(sizes)).astype(jnp.float32)
        info = info._replace(extra={**info.extra, "budget_words_used": used})
        new = BudgetState(types.ticked(state.clock), due, choices)
        return Averaged(mean, own_sent, new, info)

    def total(
        self,
        messages: Array,
        layout: MessageLayout,
        vectors: Sequence[Array],
        places: Array,
        choices: Array,
    ) -> tuple[Array, list[Array]]:
        """The errors of all workers, and the sum of each group: dense, then chosen."""
        widths = layout.words.max(axis=1)
        heads = messages[:, : layout.head_words]
        errors, arrived = jax.vmap(lambda row: split(row, layout.head))(heads)
        padded = jnp.pad(messages, ((0, 0), (0, widths.max())))

        def added(option: Compressor, payload: Spec, x: Array, rows: Array) -> Array:
            return option.decompress_sum(jax.vmap(lambda r: split(r, payload))(rows), x)

        none = make("none")
        sums = [none.decompress_sum(Dense(rows), rows[0]) for rows in arrived]
        for i, x in enumerate(vectors):
            shape = (len(messages), widths[i])
            rows = jax.lax.dynamic_slice(padded, (jnp.int32(0), places[i]), shape)
            pairs = zip(self.options, layout.payloads[i], strict=True)
            branches = [functools.partial(added, *pair, x) for pair in pairs]
            sums.append(jax.lax.switch(choices[i], branches, rows))
        return errors, sums

    def next_choices(
        self, errors: Array, is_measured: Array, layout: MessageLayout, state: Any
    ) -> tuple[Array, Array]:
        """When to measure again, and the choices until then."""
        # Relative to the largest, so that squares stay in range.
        peak = jnp.max(errors)
        shares = errors / jnp.where(peak == 0, 1.0, peak)
        errors = jnp.mean(jnp.square(shares), axis=0)
        limit = layout.size - layout.head_words

        def chosen() -> tuple[Array, Array]:
            due = (state.clock.step // self.every + 1) * self.every
            return due, assign(errors, layout.words, limit)

        return jax.lax.cond(
            # A NaN tells nothing about the options, and every worker sees it in the
            # mean. Neither does a gradient of zeros.
            is_measured & (peak > 0) & jnp.all(jnp.isfinite(errors)),
            chosen,
            lambda: (state.due, state.choices),
        )
