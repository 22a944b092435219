"""Each family of models learns from one step, through the task of the trainer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.models import make
from jaxcomp.training.tasks.classification import classifier
from tests.models.families import FAMILIES
from tests.tiers import tiers

EXAMPLES = 8
# Which take their step in the default tier: other layers than those before them.
QUICK = ("tiny", "logistic", "mlp_hidden_dropout", "lenet", "resnet8")


@pytest.mark.parametrize("family", tiers(FAMILIES, lambda f: str(f) in QUICK), ids=str)
def test_a_step_lowers_the_loss_of_its_batch(family):
    side = max(family.least, 8)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(EXAMPLES, side, side, 1)).astype(np.float32)
    batch = images, (np.arange(EXAMPLES) % 3).astype(np.int32)
    model: Any = make(family.name, num_classes=3, **family.fields)
    task = classifier(
        model,
        batch,
        batch,
        lambda epoch: np.arange(EXAMPLES).reshape(1, 1, -1),
        augment=lambda images, key: images,
        normalize=lambda images: images,
    )
    params, stats = task.init(jax.random.key(0))

    @jax.jit
    def step(params: Any, stats: Any) -> Any:
        differentiated = jax.value_and_grad(task.loss, has_aux=True)
        key = jax.random.key(1)
        (loss, learnt), gradient = differentiated(params, stats, {}, batch, key)
        length = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
        after = jax.tree.map(lambda p, g: p - 0.05 * g / length, params, gradient)
        return loss, length, after, learnt.stats

    before, length, params, new_stats = step(params, stats)
    assert 0 < length < np.inf
    assert step(params, stats)[0] < before
    assert jax.tree.structure(new_stats) == jax.tree.structure(stats)
    for new, old in zip(*map(jax.tree.leaves, (new_stats, stats)), strict=True):
        assert not np.array_equal(new, old)
