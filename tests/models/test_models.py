"""Models: published sizes, shapes, statistics, shortcuts and error messages."""

from functools import cache, partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import InvalidRngError
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxcomp.core.errors import UserError
from jaxcomp.models import REGISTRY, Statistics, make
from jaxcomp.models._layers import BatchNorm, conv, max_pool2
from jaxcomp.models.resnet_cifar import BasicBlock, shortcut_a
from tests.models.families import FAMILIES


@pytest.fixture(autouse=True)
def _strict_promotion():
    with jax.numpy_dtype_promotion("strict"):
        yield


def images_of(shape: tuple[int, ...], seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape)


# One shape for most forward passes, so that they share their compilation.
WORKERS = 3
JOINT = Statistics("workers")
IMAGES = (WORKERS * 2, 8, 8, 3)


def init_shapes(model: nn.Module, images: jax.Array, train: bool = False) -> Any:
    return jax.eval_shape(lambda k: model.init(k, images, train), jax.random.key(0))


@cache
def initial(model: nn.Module) -> Any:
    # Under jit, `init` runs as one program instead of one per layer.
    return jax.jit(lambda k: model.init(k, images_of(IMAGES), False))(jax.random.key(1))


@partial(jax.jit, static_argnums=(0, 3))
def forward(
    model: nn.Module, variables: Any, images: jax.Array, train: bool, rngs: Any = None
) -> Any:
    """Returns logits, batch_stats and the output of every submodule."""
    logits, state = model.apply(
        variables,
        images,
        train,
        rngs=rngs,
        mutable=["batch_stats", "intermediates"],
        capture_intermediates=True,
    )
    return logits, state["batch_stats"], state["intermediates"]


def count(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_every_registered_model_is_of_a_family_that_is_tested():
    classes = {type(make(family.name, **family.fields)) for family in FAMILIES}
    assert {type(make(name)) for name in REGISTRY} == classes


@pytest.mark.parametrize("more", [(0, 0, 3), (0, 0, 1), (1, 5, 2)])
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_logits_are_float32_per_class(family, more):
    height, width, channels = more
    shape = (2, family.least + height, family.least + width, channels)
    assert_shapes(make(family.name, num_classes=7, **family.fields), shape)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.least > 1], ids=str)
def test_images_that_are_too_small_are_refused(family):
    images = jnp.zeros((2, family.least - 1, family.least, 1))
    with pytest.raises(UserError, match=f"of at least {family.least}"):
        init_shapes(make(family.name, **family.fields), images)


def assert_shapes(model: Any, shape: tuple[int, ...]) -> None:
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    logits, variables = jax.eval_shape(
        lambda k: model.init_with_output(k, jnp.zeros(shape), True), keys
    )
    assert (logits.shape, logits.dtype) == ((2, model.num_classes), jnp.float32)
    assert {"params"} <= set(variables) <= {"params", "batch_stats"}
    assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype("float32")}


HALF = [f for f in FAMILIES if f.name != "logistic"]


@pytest.mark.parametrize("family", HALF, ids=str)
def test_half_precision_layers_leave_float32_logits(family):
    """The last layer alone computes in float32."""
    model = make(family.name, dtype=jnp.bfloat16, **family.fields)
    shape = (2, family.least, family.least, 3)
    assert_shapes(model, shape)
    seen = []

    def record(call, args, kwargs, context):
        out = call(*args, **kwargs)
        if isinstance(context.module, nn.Conv | nn.Dense):
            seen.append(out.dtype)
        return out

    with nn.intercept_methods(record):
        init_shapes(model, jnp.zeros(shape))
    assert set(seen[:-1]) == {jnp.dtype("bfloat16")}
    assert seen[-1] == jnp.float32


def test_stride_two_convolution_aligns_with_pytorch():
    # Padded on both sides, the windows are centred on pixels 0 and 2.
    x = jnp.arange(16.0).reshape(1, 4, 4, 1)
    kernel = jnp.zeros((3, 3, 1, 1)).at[1, 1].set(1.0)
    y = conv(1, stride=2).apply({"params": {"kernel": kernel}}, x)
    np.testing.assert_array_equal(y, x[:, ::2, ::2])


def test_he_initialisation_of_convolutions():
    variables: Any = conv(64).init(jax.random.key(0), jnp.zeros((1, 8, 8, 32)))
    assert set(variables["params"]) == {"kernel"}
    std = np.std(variables["params"]["kernel"])
    np.testing.assert_allclose(std, np.sqrt(2 / (9 * 32)), rtol=0.03)


@pytest.mark.parametrize("side", [6, 7])
def test_max_pool2_equals_flax_in_value_and_gradient(side):
    x = images_of((2, side, side, 3))

    def loss(pool, x):
        return jnp.sum(pool(nn.relu(x)) ** 2)

    def flax_pool(x):
        return nn.max_pool(x, (2, 2), (2, 2))

    gradient = jax.jit(jax.grad(loss, argnums=1), static_argnums=0)
    np.testing.assert_array_equal(max_pool2(x), flax_pool(x))
    np.testing.assert_array_equal(gradient(max_pool2, x), gradient(flax_pool, x))


def test_shortcut_a_pads_half_of_the_channels_on_each_side():
    x = images_of((2, 5, 4, 6))
    y = shortcut_a(x, features=12, stride=2)
    assert y.shape == (2, 3, 2, 12)
    np.testing.assert_array_equal(y[..., 3:9], x[:, ::2, ::2])
    assert not y[..., :3].any()
    assert not y[..., 9:].any()


@pytest.mark.parametrize(("features", "stride"), [(4, 1), (8, 2)])
def test_block_with_zero_convolutions_is_its_shortcut(features, stride):
    # The block ends in a ReLU, so only a non-negative input survives it.
    x = jnp.abs(images_of((2, 8, 8, 4)))
    block = BasicBlock(features, stride)
    shapes = init_shapes(block, x)
    assert set(shapes["params"]) == {"Conv_0", "Conv_1", "BatchNorm_0", "BatchNorm_1"}
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    for name in ("Conv_0", "Conv_1"):
        ones["params"][name]["kernel"] *= 0.0
    for name in ("BatchNorm_0", "BatchNorm_1"):
        ones["params"][name]["bias"] *= 0.0
        ones["batch_stats"][name]["mean"] *= 0.0
    y, _, _ = forward(block, ones, x, False)
    np.testing.assert_array_equal(y, shortcut_a(x, features, stride))


def test_shortcut_b_projects_where_the_shape_changes():
    model = make("resnet20", shortcut="B")
    params = init_shapes(model, jnp.zeros((1, 32, 32, 3)))["params"]
    projected = {name for name in params if "projection" in params[name]}
    assert projected == {"stage2_block1", "stage3_block1"}
    kernel = params["stage2_block1"]["projection"]["kernel"]
    assert kernel.shape == (1, 1, 16, 32)


def test_dropout_needs_a_key_in_training_only():
    model, plain = (make("mlp", hidden=(8,), dropout=p) for p in (0.5, 0.0))
    images, variables = images_of(IMAGES), initial(plain)

    def logits(model, *args):
        return forward(model, variables, images, *args)[0]

    with pytest.raises(InvalidRngError, match="dropout"):
        logits(model, True)
    one, other = (logits(model, True, {"dropout": jax.random.key(i)}) for i in (0, 1))
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(logits(model, False), logits(plain, False))


def test_resnet9_residual_adds_after_the_relu():
    model = make("resnet9", width=8)
    variables = initial(model)
    # A large negative bias closes the branch: only the identity remains.
    flat: dict[Any, Any] = flatten_dict(variables["params"])
    flat["residual3_2", "BatchNorm_0", "bias"] = jnp.full((64,), -1e6)
    params = unflatten_dict(flat)
    logits, _, outputs = forward(
        model, variables | {"params": params}, images_of(IMAGES), False
    )
    (layer3,) = outputs["layer3"]["__call__"]
    features = max_pool2(layer3).max(axis=(1, 2))
    expected = 0.125 * features @ params["Dense_0"]["kernel"]
    assert np.any(logits)
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f.normalised], ids=str)
def test_statistics_reach_every_normalisation(family):
    seen = []

    def record(call, args, kwargs, context):
        if isinstance(context.module, BatchNorm):
            seen.append(context.module.statistics)
        return call(*args, **kwargs)

    # No axis of this name exists here, so this also shows that neither
    # initialisation nor evaluation asks for it.
    model = make(family.name, statistics=JOINT, **family.fields)
    images = jnp.zeros((2, family.least, family.least, 3))
    with nn.intercept_methods(record):
        shapes = init_shapes(model, images)
        jax.eval_shape(lambda v: model.apply(v, images, False), shapes)
    norms = {path[:-1] for path in flatten_dict(shapes["batch_stats"])}
    assert seen == [JOINT] * (2 * len(norms))


def test_unknown_name_suggests_the_close_one():
    with pytest.raises(ValueError, match="'resnt20'. Did you mean 'resnet20'") as error:
        make("resnt20")
    assert all(name in str(error.value) for name in REGISTRY)
    with pytest.raises(ValueError, match="unknown model 'zzz'. Valid: alexnet, "):
        make("zzz")


@pytest.mark.parametrize(
    ("name", "key", "valid"),
    [
        ("resnet20", "depth", "dtype, num_classes, shortcut, statistics"),
        ("lenet", "parent", "dtype, num_classes"),
        (
            "wide_resnet",
            "drop",
            "depth, dropout, dtype, num_classes, statistics, width",
        ),
    ],
)
def test_unknown_keyword_lists_the_valid_ones(name, key, valid):
    with pytest.raises(UserError, match=f"{name} has no .*'{key}'.*Valid: {valid}$"):
        make(name, **{key: 1})


@pytest.mark.parametrize(
    ("name", "kw", "message"),
    [
        ("wide_resnet", {"depth": 27}, r"depth=27 .* 6n\+4 .*depths: 22, 28"),
        ("wide_resnet", {"depth": 4}, "depth=4 .*depths: 10$"),
        ("wide_resnet", {"dropout": 1.0}, r"dropout=1.0 .*\[0, 1\)"),
        ("wide_resnet", {"dropout": -0.1}, "dropout=-0.1 "),
        ("wide_resnet", {"width": 0}, "width=0 .*at least 1"),
        ("resnet20", {"shortcut": "C"}, "shortcut='C' .*valid: A, B"),
        ("resnet20", {"num_classes": 0}, "num_classes=0 .*at least 1"),
        ("resnet9", {"width": -1}, "width=-1 .*at least 1"),
        ("tiny", {"num_classes": -3}, "num_classes=-3 .*at least 1"),
        ("resnet9", {"residuals": (1, 4)}, r"residuals=\(1, 4\) .*1, 2 and 3"),
        ("resnet9", {"extras": (2, 2)}, r"extras=\(2, 2\) .*once"),
        ("resnet9", {"channels": (1, 2, 3)}, "are not four numbers"),
        ("vgg11", {"hidden": -1}, "hidden=-1 .*at least 1"),
        ("vgg16", {"dropout": 1.0}, r"dropout=1.0 .*\[0, 1\)"),
        ("densenet", {"depth": 23}, r"depth=23 .* 6n\+4 .*depths: 22, 28"),
        ("densenet", {"depth": 6, "bc": False}, r"3n\+4 .*depths: 7, 10"),
        ("densenet", {"blocks": (2, 0)}, "blocks=0 .*at least 1"),
        ("mobilenet_v2", {"stages": ((1, 2, 3),)}, r"\(1, 2, 3\) is not the expansion"),
        ("mlp", {"hidden": (4, 0)}, "hidden=0 .*at least 1"),
        ("alexnet_dense", {"hidden": 0}, "hidden=0 .*at least 1"),
    ],
)
def test_bad_value_is_shown_with_the_valid_ones(name, kw, message):
    with pytest.raises(ValueError, match=message):
        make(name, **kw)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (jnp.zeros((2, 7, 8, 3)), r"shape \(2, 7, 8, 3\).*at least 8"),
        (jnp.zeros((8, 8, 3)), r"shape \(8, 8, 3\)"),
        (jnp.zeros((2, 8, 8, 3), jnp.uint8), "dtype uint8.*float32"),
    ],
)
@pytest.mark.parametrize("name", ["tiny", "resnet9"])
def test_bad_images_are_shown(name, images, message):
    with pytest.raises(ValueError, match=message):
        init_shapes(make(name), images)
