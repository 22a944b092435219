"""What a model brings beside its layers, where a config asks for it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from jaxcomp import models
from jaxcomp.core.errors import UserError
from jaxcomp.models.tiny import Tiny
from jaxcomp.training.tasks.named import transform_of
from tests.training.small import built, small_config

HERE = "tests.training.test_brought"
AUGMENT, VIEW = "crop(pad=0, size=8) | flip", "center_crop(size=8, resize=9)"


def mine(num_classes: int) -> nn.Module:
    """A model of somebody's own, for windows of 8 pixels."""
    return Tiny(num_classes, width=2)


mine.input_transform = {"augment": AUGMENT, "eval_view": VIEW}  # pyright: ignore[reportFunctionMemberAccess]


def task_of(**changes: Any) -> Any:
    usual = {"dataset": "digits(size=12)", "model": f"{HERE}:mine", "mapper": "vmap"}
    return built(small_config(**{**usual, **changes})).task


def seen(task: Any) -> tuple[Any, Any]:
    """Loss and score of a few images, with parameters that are always the same."""
    key = jax.random.key(0)
    variables = task.init(key)
    batch = tuple(jnp.asarray(array[:8]) for array in task.train)
    loss, _ = task.loss(*variables, {}, batch, key)
    return loss, task.score(variables, {}, batch, jnp.ones(8))[0].loss


def test_a_model_s_transform_is_used_where_the_config_asks_for_it():
    brought = seen(task_of(augment="model", eval_view="model"))
    said = seen(task_of(augment=AUGMENT, eval_view=VIEW))
    np.testing.assert_array_equal(brought, said)
    others = seen(task_of(augment="", eval_view=""))
    assert others[0] != said[0]
    assert others[1] != said[1]


def test_more_augmentations_may_follow_those_of_the_model():
    config: Any = {"model": "alexnet_imagenet", "augment": "model|pca_lighting"}
    found = transform_of(config, "augment")
    assert found == "crop(pad=0, size=224) | flip | pca_lighting"
    config = {"model": "alexnet_imagenet(width=8)", "eval_view": " model "}
    assert transform_of(config, "eval_view") == "center_crop(size=224, resize=256)"
    assert transform_of({"model": "tiny", "eval_view": ""}, "eval_view") == ""


@pytest.mark.parametrize("key", ["augment", "eval_view"])
@pytest.mark.parametrize("model", ["tiny(width=2)", f"{HERE}:Tiny"])
def test_a_model_that_brings_none_is_an_error_that_names_the_key(key, model):
    with pytest.raises(UserError, match=f"{key} 'model': the model '.*' brings none"):
        task_of(model=model, **{key: "model"})


def test_only_models_whose_source_had_one_bring_one():
    brought = [n for n, factory in models.REGISTRY.items() if factory.input_transform]  # pyright: ignore[reportFunctionMemberAccess]
    assert brought == ["alexnet_imagenet"]
