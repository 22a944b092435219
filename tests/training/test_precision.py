"""bfloat16 and the precision of products: where they act, and where they do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp import training
from tests.training.small import built, small_config


def loss_of(**changes):
    """The trace of the loss and its gradient, and the setup."""
    setup = built(small_config(mapper="vmap", **changes))
    task = setup.task
    batch = tuple(array[:4] for array in task.train)

    def gradient(key):
        params, stats = task.init(key)
        return jax.grad(lambda p: task.loss(p, stats, {}, batch, key)[0])(params)

    return str(jax.make_jaxpr(gradient)(jax.random.key(0)))


@pytest.mark.parametrize(
    ("precision", "shown"),
    [("float32", "HIGHEST"), ("tensorfloat32", "HIGH"), ("bfloat16", "DEFAULT")],
)
def test_products_of_the_loss_and_its_gradient_have_the_precision(precision, shown):
    """Four layers, and the gradients of their weights and of all inputs but images."""
    asked = loss_of(matmul_precision=precision)
    assert asked.count(f"Precision.{shown},") == 4 + 4 + 3
    assert f"Precision.{shown}," not in loss_of()


def test_convolutions_and_activations_are_bfloat16():
    lines = loss_of(compute_dtype="bfloat16").splitlines()
    products = [line for line in lines if "conv_general_dilated" in line]
    assert products
    assert all(":bf16[" in line.partition("=")[0] for line in products)
    assert not any(
        ":bf16[" in line.partition("=")[0] for line in loss_of().splitlines()
    )


def test_a_run_in_bfloat16_learns_and_keeps_float32(tmp_path):
    config = small_config(compute_dtype="bfloat16", matmul_precision="float32")
    result = training.train_and_evaluate(config, tmp_path)
    dtypes = {
        x.dtype for x in jax.tree.leaves((result.state.params, result.state.stats))
    }
    assert dtypes == {jnp.dtype("float32")}
    assert np.isfinite(result.test_loss)
