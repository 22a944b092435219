"""Each family of image models in a size that compiles in a second or two."""

from typing import Any, NamedTuple


class Family(NamedTuple):
    """A model of few parameters."""

    name: str
    fields: dict[str, Any]
    least: int  # side of the smallest images
    normalised: bool = True  # whether it has batch normalisation

    def __str__(self) -> str:
        return "_".join([self.name, *map(str, self.fields)])


FAMILIES = [
    Family("tiny", {}, 8),
    Family("logistic", {}, 1, normalised=False),
    Family("mlp", {"hidden": (8,), "dropout": 0.1}, 1),
    Family("lenet", {}, 12, normalised=False),
    Family("alexnet", {"width": 4}, 15),
    Family("alexnet_dense", {"width": 4, "hidden": 8}, 15, normalised=False),
    Family("alexnet_imagenet", {"width": 2, "hidden": 8}, 63),
    Family("vgg11", {"width": 2}, 8),
    Family(
        "vgg11", {"width": 2, "batch_norm": False, "hidden": 8}, 8, normalised=False
    ),
    Family("resnet8", {}, 1),
    Family("resnet8", {"shortcut": "B"}, 1),
    Family("resnet10", {"width": 4}, 1),
    Family("resnet9", {"width": 4, "extras": (2,)}, 8),
    Family("wide_resnet", {"depth": 10, "width": 1, "dropout": 0.1}, 1),
    Family("densenet", {"depth": 10, "growth": 4}, 4),
    Family("densenet", {"depth": 7, "bc": False}, 4),
    Family("mobilenet_v2", {"stages": ((1, 8, 1, 1), (2, 8, 2, 2))}, 1),
]
