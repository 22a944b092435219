"""The step of one worker, without a trainer around it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxcomp
from jaxcomp.training.state import TrainState
from jaxcomp.training.step import make_train_step
from jaxcomp.training.tasks.classification import classifier


class Steep:
    """Logits that stand still and a gradient of 1e20, whose square is no float32."""

    def apply(self, variables, images, train, mutable, rngs):
        return 1e20 * variables["params"]["w"][None] * images, {}


def test_a_huge_gradient_is_a_number_like_any_other():
    tx = optax.chain(
        jaxcomp.distributed(jaxcomp.make_exchange("exact", memory="none")),
        optax.sgd(1e-20),
    )
    params = {"w": jnp.zeros(2)}
    state = TrainState(params, {}, {}, tx.init(params))
    none = (np.zeros((0, 2)), np.zeros(0))
    as_it_is = {"augment": lambda x, key: x, "normalize": lambda x: x}
    task = classifier(Steep(), none, none, lambda epoch: np.zeros(0), **as_it_is)
    step = make_train_step(task, tx, seed=0, axis="workers")
    images, labels = jnp.ones((2, 4, 2)), jnp.zeros((2, 4), jnp.int32)
    mapped = jax.jit(jax.vmap(step, in_axes=(None, 0, 0), axis_name="workers"))
    new, metrics = mapped(state, images, labels)
    assert metrics.applied.all()
    np.testing.assert_allclose(metrics.gradient_norms, np.full((2, 1), 7.0711e19), 1e-4)
    np.testing.assert_allclose(new.params["w"], [[0.5, -0.5]] * 2, rtol=1e-5)
