"""The parameters of each model are as many as those that others have published."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxcomp.models import Lstm, ResNetImageNet, make
from jaxcomp.models.resnet_imagenet import Bottleneck
from tests.tiers import tiers

HE = "0.27M to 1.7M, He et al., arXiv:1512.03385, table 6"
TORCHVISION = "the table of weights in torchvision's documentation"
DENSENET = "0.8M and 1.0M, Huang et al., arXiv:1608.06993, table 2"
LAYERS = "the sum over the layers of the original"

CIFAR, MNIST, IMAGENET = (32, 32, 3), (28, 28, 1), (224, 224, 3)


def imagenet(name: str, count: int, **kw: Any) -> tuple[Any, ...]:
    return name, {"num_classes": 1000, **kw}, IMAGENET, count, TORCHVISION


PUBLISHED = [
    ("resnet20", {}, CIFAR, 269_722, HE),
    ("resnet20", {"shortcut": "B"}, CIFAR, 272_474, HE),
    ("resnet32", {}, CIFAR, 464_154, HE),
    ("resnet44", {}, CIFAR, 658_586, HE),
    ("resnet56", {}, CIFAR, 853_018, HE),
    ("resnet110", {}, CIFAR, 1_727_962, HE),
    ("resnet9", {}, CIFAR, 6_573_120, "6.57M, davidcpage/cifar10-fast"),
    ("wide_resnet", {}, CIFAR, 36_479_194, "36.5M, arXiv:1605.07146, table 5"),
    ("wide_resnet", {"depth": 16, "width": 4}, CIFAR, 2_748_890, "2.75M, the same"),
    ("lenet", {}, MNIST, 61_706, "the usual count of LeNet-5"),
    ("logistic", {}, MNIST, 7_850, "784 weights and a bias for each of 10 classes"),
    ("mlp", {}, MNIST, 1_462_794, LAYERS),
    ("alexnet", {}, CIFAR, 2_255_296, LAYERS),
    ("alexnet_dense", {}, CIFAR, 23_272_266, LAYERS),
    # torchvision's 61,100,840 have biases where these have scale and bias.
    imagenet("alexnet_imagenet", 61_100_840 + 9_344),
    (
        "vgg16",
        {},
        CIFAR,
        14_728_266,
        "the sum over the layers of kuangliu/pytorch-cifar",
    ),
    ("vgg16", {"hidden": 4096, "batch_norm": False}, CIFAR, 134_301_514, LAYERS),
    imagenet("vgg11", 132_863_336, hidden=4096, batch_norm=False),
    imagenet("vgg13", 133_047_848, hidden=4096, batch_norm=False),
    imagenet("vgg16", 138_357_544, hidden=4096, batch_norm=False),
    imagenet("vgg19", 143_667_240, hidden=4096, batch_norm=False),
    imagenet("vgg11", 132_868_840, hidden=4096),
    imagenet("vgg13", 133_053_736, hidden=4096),
    imagenet("vgg16", 138_365_992, hidden=4096),
    imagenet("vgg19", 143_678_248, hidden=4096),
    imagenet("resnet18", 11_689_512),
    imagenet("resnet34", 21_797_672),
    imagenet("resnet50", 25_557_032),
    imagenet("resnet101", 44_549_160),
    imagenet("resnet152", 60_192_808),
    ("densenet", {}, CIFAR, 769_162, DENSENET),
    ("densenet", {"depth": 40, "bc": False}, CIFAR, 1_019_722, DENSENET),
    imagenet("densenet121", 7_978_856),
    imagenet("densenet169", 14_149_480),
    imagenet("densenet201", 20_013_928),
    ("mobilenet_v2", {}, CIFAR, 3_504_872 - 990 * 1281, TORCHVISION),
    imagenet("mobilenet_v2", 3_504_872, imagenet=True),
]
# These take seconds to trace, and others go through the same code.
LONG = tuple(f"resnet{n}" for n in (50, 101, 110, 152))
LONG += tuple(f"densenet{n}" for n in (121, 169, 201))


@pytest.mark.parametrize(
    ("name", "kw", "shape", "count", "source"),
    tiers(PUBLISHED, lambda case: case[0] not in LONG and "depth" not in case[1]),
)
def test_parameter_count_is_the_published_one(name, kw, shape, count, source):
    model = make(name, **kw)
    images = jnp.zeros((1, *shape))
    shapes = jax.eval_shape(lambda k: model.init(k, images, False), jax.random.key(0))
    assert size(shapes["params"]) == count, source


@pytest.mark.parametrize(
    ("width", "millions"), [(650, 19_775_200), (1500, 66_022_000)], ids=str
)
def test_language_models_have_the_size_of_zaremba_s(width, millions):
    """20M and 66M: Merity et al., Pointer Sentinel Mixture Models, 1609.07843."""
    model = Lstm(10_000, width=width, tied=False)
    assert size(lstm_shapes(model)) == millions
    # Tied, one of the two matrices is left.
    assert size(lstm_shapes(Lstm(10_000, width=width))) == millions - 10_000 * width


def lstm_shapes(model: Lstm) -> Any:
    def start(key: jax.Array) -> Any:
        return model.init(key, jnp.zeros((1, 2), jnp.int32), model.carry(1), False)

    return jax.eval_shape(start, jax.random.key(0))["params"]


def size(tree: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_each_block_of_an_imagenet_resnet_begins_as_its_shortcut():
    x = jnp.abs(jax.random.normal(jax.random.key(0), (2, 4, 4, 8)))
    for zero_scale, is_shortcut in ((True, True), (False, False)):
        block = Bottleneck(2, zero_scale=zero_scale)
        init = jax.jit(lambda k, b=block: b.init_with_output(k, x, False))
        y, _ = init(jax.random.key(1))
        assert bool(jnp.all(y == x)) is is_shortcut
    assert ResNetImageNet().zero_scale
