"""An exchange or a mixer as an optax transformation, and the state of it."""

import functools
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxcomp.core import types
from jaxcomp.core.trees import spec_of, vary_like
from jaxcomp.core.types import Array, Exchange, Mixer, PerWorker, State, Tree, ticked
from jaxcomp.exchanges.overlap import WHOLE, Cut
from jaxcomp.parallel import checks
from jaxcomp.parallel.checks import axis_index
from jaxcomp.transforms.nonfinite import attempt


class DistributedState(NamedTuple):
    """State of `distributed`, `pmean` and `mixing`."""

    clock: types.Clock  # each step draws its own key
    exchange: State  # of the exchange or the mixer
    info: PerWorker  # the last step's Info, for whoever logs it

    @property
    def step(self) -> Array:
        """[] int32, steps done."""
        return self.clock.step


def find_state(opt_state: Any) -> DistributedState:
    """The `DistributedState` inside the state of any optax chain.

    Example:
      >>> import optax
      >>> from jaxcomp import distributed, make_exchange
      >>> tx = optax.chain(distributed(make_exchange(), seed=0), optax.adam(0.1))
      >>> int(find_state(tx.init(jnp.ones(3))).step)
      0
    """
    states = find_states(opt_state)
    if len(states) != 1:
        raise ValueError(
            "expected one `distributed` or `mixing` in the chain, found "
            f"{len(states)}. find_states() returns all; or pass the part of the state "
            "that holds the one you mean"
        )
    return states[0]


def find_states(opt_state: Any) -> list[DistributedState]:
    """All of them, where links have parts of the model; in the order of the tree.

    Example:
      >>> import optax
      >>> from jaxcomp import distributed, make_exchange
      >>> link = distributed(make_exchange(), seed=0, allow_masked=True)
      >>> tx = optax.multi_transform({"w": link, "b": link}, {"w": "w", "b": "b"})
      >>> len(find_states(tx.init({"w": jnp.ones(3), "b": jnp.ones(1)})))
      2
    """

    def found(node: Any) -> bool:
        return isinstance(node, DistributedState)

    return [n for n in jax.tree.leaves(opt_state, is_leaf=found) if found(n)]


def first_state(state: State, figures: tuple[str, ...]) -> DistributedState:
    """Before the first step, around the state of an exchange or a mixer."""
    zero = jnp.float32(0)
    extra = {name: jnp.float32(0) for name in figures}
    info = types.Info(zero, zero, zero, extra, sends=jnp.bool_(False), given_norm=zero)
    return DistributedState(types.Clock(jnp.int32(0)), state, PerWorker(info))


def typed_to_differ(state: State, axis: types.Axis) -> State:
    """The state, with the types of its marked parts saying that workers differ.

    A marked part may happen to be constant, and JAX would then type it as equal on all
    workers. A loop wants the type with which the state came in.
    """

    place = axis_index(axis)
    return jax.tree.map(
        lambda node: vary_like(node, place) if types.is_per_worker(node) else node,
        state,
        is_leaf=types.is_per_worker,
    )


def step_key(key: Array | None, seed: int | None, step: Array, tree: Tree) -> Array:
    """The key of a step for this tree, from the caller's key or the link's seed.

    Links that share a model would draw the same noise from one seed, so the names of
    the tensors of a part go into it: names, and not their `hash`, which is another one
    in each process.
    """
    if key is None:
        if seed is None:
            message = (
                "update() needs key=, the same on every worker; or build the link with "
                "a seed: distributed(exchange, seed=0), mixing(mixer, seed=0)"
            )
            raise TypeError(message)
        key = jax.random.key(seed)
    absent = (type(None), optax.MaskedNode)
    paths, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda node: isinstance(node, absent)
    )
    own = [path for path, node in paths if not isinstance(node, absent)]
    if len(own) < len(paths):
        names = "\n".join(map(jax.tree_util.keystr, own))
        key = jax.random.fold_in(key, zlib.crc32(names.encode()))
    return jax.random.fold_in(key, step)


def distributed(
    exchange: Exchange,
    seed: int | None = None,
    *,
    allow_masked: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Average gradients over the workers of a mapped axis, inside an optax chain.

    The one link of the chain that sends anything: what stands before it works on the
    local gradient, what stands after it sees the same mean on every worker. What uses
    gradients outside the chain sees local ones: there, take `pmean`. What
    `optax.masked` hides would stay local, and replicas drift apart: `init` refuses it.
    Before an exchange that sends parts of the gradient early, links have to work tensor
    by tensor: `optax.clip_by_global_norm` waits for the whole gradient.

    Args:
      exchange: from `make_exchange`.
      seed: derives all keys from this seed and the step, for loops that cannot pass
        `key=` to `update`, such as flax's TrainState. Without it, `update` needs
        `key=`: the same key on every worker, a base key is enough. Links for parts
        of a model, under `optax.multi_transform`, draw apart from one seed or key.
      allow_masked: take what `optax.masked` leaves of a model, where something else
        looks after the rest: under `optax.multi_transform`, another link that averages,
        or `optax.set_to_zero`.

    Example:
      >>> from jaxcomp.transforms.make import make_exchange
      >>> tx = optax.chain(
      ...     distributed(make_exchange(compressor="sign"), seed=0), optax.sgd(0.1)
      ... )
      >>> params = jnp.ones(3)
      >>> state = tx.init(params)
      >>> grads = jnp.array([[1.0, 2.0, -3.0], [3.0, 2.0, -1.0]])  # two workers
      >>> step = lambda g: tx.update(g, state, params)[0]
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([-0.2, -0.2,  0.2], dtype=float32)
    """
    if not isinstance(exchange, Exchange):
        message = (
            f"distributed() takes an Exchange from make_exchange, not {exchange!r}"
        )
        raise TypeError(message)
    made: dict[Any, types.Spec] = {}  # of the states of trees, by their shapes

    def init(params: Tree) -> DistributedState:
        if not allow_masked:
            checks.check_whole(params, checks.LOCAL)
        checks.check_patterns(exchange.patterns, params)
        state = exchange.init(params)
        made[_shapes(params)] = spec_of(state)
        return first_state(state, exchange.figures)

    def update(
        updates: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        key: Array | None = None,
        **extra: Any,
    ) -> tuple[Tree, DistributedState]:
        key = step_key(key, seed, state.clock.step, updates)
        checks.check_differs(updates, exchange.axis, checks.SUMMED)
        if (shapes := _shapes(updates)) not in made:
            made[shapes] = jax.eval_shape(exchange.init, updates)
        checks.check_fit(made[shapes], state.exchange)
        mean, _, inner, info, *_ = exchange.average(updates, state.exchange, key)
        new = DistributedState(ticked(state.clock), inner, PerWorker(info))
        return mean, typed_to_differ(new, exchange.axis)

    return optax.GradientTransformationExtraArgs(init, update)


class Mean(NamedTuple):
    """What stands in the place of `jax.lax.pmean`; made by `pmean`."""

    link: optax.GradientTransformationExtraArgs
    cut: Cut

    def init(self, params: Tree) -> Any:
        """The state before the first step, made on the host."""
        return self.link.init(params)

    def __call__(
        self, grads: Tree, comm: Any, key: Array | None = None
    ) -> tuple[Tree, DistributedState]:
        """The mean over all workers, and the state for the next step.

        Args:
          grads: of this worker.
          comm: the state: marked, as each worker keeps what it did not send.
          key: as in `distributed`.
        """

        def average(grads: Tree, old: Any) -> tuple[Tree, Any]:
            return self.link.update(grads, old, key=key)

        step = attempt(average, grads, comm, self.cut)
        return step.result, step.state


def pmean(
    exchange: Exchange, seed: int | None = None, *, allow_masked: bool = False
) -> Mean:
    """The line `grads = jax.lax.pmean(grads, "workers")`, with an exchange.

    All that follows sees the mean: clipping, logged norms, a loss scale, a test whether
    the step is finite. If any worker's gradient is not, the mean is not, on any worker,
    and nothing is kept of that step.

    Args:
      exchange: from `make_exchange`; it names the axis.
      seed: as in `distributed`.
      allow_masked: likewise.

    Example:
      >>> from jaxcomp.transforms.make import make_exchange
      >>> mean = pmean(make_exchange(compressor="sign"), seed=0)
      >>> comm = mean.init(jnp.ones(3))
      >>> grads = jnp.array([[1.0, 2.0, -3.0], [3.0, 2.0, -1.0]])  # two workers
      >>> step = lambda g: mean(g, comm)[0]
      >>> jax.vmap(step, axis_name="workers", out_axes=None)(grads)
      Array([ 2.,  2., -2.], dtype=float32)
    """
    link = distributed(exchange, seed, allow_masked=allow_masked)
    return Mean(link, exchange.cut or WHOLE)


def mixing(
    mixer: Mixer,
    seed: int | None = None,
    phase: int | None = None,
    *,
    allow_masked: bool = False,
) -> optax.GradientTransformationExtraArgs:
    """Draw the workers' models together: the last link of a decentralised chain.

    What stands before it works on the local gradient and ends in the local update,
    momentum included. Parameters and the whole state are the worker's own: map all of
    them (in_axes=0), or mark them `PerWorker`. Where workers start from different
    models, `init` has to see all of these, as below, or run under the axis.

    Args:
      mixer: from `make_mixer`.
      seed: as in `distributed`.
      phase: compile this phase of the mixer's schedule alone, for loops that have a
        compiled step for each phase and choose it by `mixer.phase(step)`. By default
        one compiled step holds all phases and chooses by the step count.
      allow_masked: mix what `optax.masked` leaves of a model, where each worker is to
        keep the rest to itself, or another link looks after it.

    Example:
      >>> from jaxcomp.transforms.make_mixer import make_mixer
      >>> ring = make_mixer("choco(gamma=0.5)", "ring", 4, compressor="sign")
      >>> tx = optax.chain(optax.sgd(0.1), mixing(ring, seed=0))
      >>> params = jnp.zeros((4, 3))  # four workers
      >>> state = jax.vmap(tx.init, axis_name="workers")(params)
      >>> step = lambda g, s, p: tx.update(g, s, p)[0]
      >>> grads = jnp.ones((4, 3))
      >>> updates = jax.vmap(step, axis_name="workers")(grads, state, params)
      >>> updates.shape
      (4, 3)
    """
    if not isinstance(mixer, Mixer):
        raise TypeError(f"mixing() takes a Mixer from make_mixer, not {mixer!r}")
    phases = sorted(set(mixer.schedule))

    def init(params: Tree) -> DistributedState:
        if not allow_masked:
            checks.check_whole(params, checks.UNMIXED)
        checks.check_patterns(mixer.patterns, params)
        return first_state(mixer.init(params), mixer.figures)

    def update(
        updates: Tree,
        state: Any,
        params: Tree | None = None,
        *,
        key: Array | None = None,
        **extra: Any,
    ) -> tuple[Tree, DistributedState]:
        key = step_key(key, seed, state.clock.step, updates)
        if params is None:
            raise TypeError("update() of mixing needs params: it averages models")
        checks.check_differs(params, mixer.axis, checks.SHARED)
        checks.check_differs(updates, mixer.axis, checks.SUMMED)

        def run(phase: int) -> Any:
            mixed = mixer.mix(params, updates, state.exchange, key, phase)
            return vary_like(mixed, axis_index(mixer.axis))

        if phase is not None or len(phases) == 1:
            mixed = run(phases[0] if phase is None else phase)
        else:
            places = [phases.index(p) for p in mixer.schedule]
            now = jnp.asarray(places)[state.clock.step % len(places)]
            branches = [functools.partial(run, p) for p in phases]
            mixed = jax.lax.switch(now, branches)
        info = PerWorker(mixed.info)
        return mixed.updates, DistributedState(ticked(state.clock), mixed.state, info)

    return optax.GradientTransformationExtraArgs(init, update)


def _shapes(tree: Tree) -> Any:
    """Structure, shapes and dtypes, as a key of a dict."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves)
