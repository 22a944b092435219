"""The data sets that are prepared from an archive: their files and checksums."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from . import cifar, idx, stl10, svhn
from .dataset import Splits

__all__ = ["IMAGENET_COLOURS", "SOURCES", "Source"]

Reader = Callable[[Path, Mapping[str, str]], tuple[Splits, str]]


class Source(NamedTuple):
    """Where a data set comes from, and what is known of its content."""

    name: str  # as in TFDS
    version: str  # as in TFDS
    shape: tuple[int, int, int]  # H, W, C
    num_classes: int
    counts: tuple[int, int]  # training and test examples
    balanced: bool  # all classes have the same number of examples in each split
    mean: tuple[float, ...]
    std: tuple[float, ...]
    read: Reader  # (archive, md5) -> arrays, and how they were checked
    urls: tuple[str, ...]  # what `prepare` downloads
    md5: Mapping[str, str]  # name -> published MD5, of archives and their members

    @property
    def about(self) -> str:
        """What it holds, in one line."""
        (height, width, _), (train, test) = self.shape, self.counts
        return (
            f"{train} images of {height}x{width} in {self.num_classes} classes, {test} "
            "for the test."
        )


# Mean and standard deviation of each channel, of pixels from 0 to 1.
IMAGENET_COLOURS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
_MNIST_URL = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_SVHN_URL = "http://ufldl.stanford.edu/housenumbers/"
_FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"

CIFAR10 = Source(
    name="cifar10",
    version="3.0.2",
    shape=(32, 32, 3),
    num_classes=10,
    counts=(50_000, 10_000),
    balanced=True,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2471, 0.2435, 0.2616),
    read=functools.partial(cifar.read, layout=cifar.CIFAR10),
    urls=(_CIFAR_URL + "cifar-10-binary.tar.gz",),
    md5={
        "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)

CIFAR100 = CIFAR10._replace(
    name="cifar100",
    num_classes=100,
    mean=(0.5071, 0.4866, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    read=functools.partial(cifar.read, layout=cifar.CIFAR100),
    urls=(_CIFAR_URL + "cifar-100-binary.tar.gz",),
    # There are no published MD5s of the members, so a re-packed archive is checked by
    # counts, label ranges and class balance.
    md5={
        "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    },
)

MNIST = Source(
    name="mnist",
    version="3.0.1",
    shape=(28, 28, 1),
    num_classes=10,
    counts=(60_000, 10_000),
    balanced=False,
    mean=(0.1307,),
    std=(0.3081,),
    read=idx.read,
    urls=tuple(_MNIST_URL + name for name in idx.FILES),
    md5={
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    },
)

FASHION_MNIST = MNIST._replace(
    name="fashion_mnist",
    balanced=True,
    mean=(0.2860,),
    std=(0.3530,),
    urls=tuple(_FASHION_URL + name for name in idx.FILES),
    md5={
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    },
)

SVHN = Source(
    name="svhn_cropped",
    version="3.1.0",
    shape=(32, 32, 3),
    num_classes=10,
    counts=(73_257, 26_032),
    balanced=False,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    read=svhn.read,
    urls=tuple(_SVHN_URL + name for name in svhn.FILES),
    md5={
        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
    },
)

STL10 = Source(
    name="stl10",
    version="1.0.0",
    shape=(96, 96, 3),
    num_classes=10,
    counts=(5_000, 8_000),
    balanced=True,
    mean=(0.4467, 0.4398, 0.4066),
    std=(0.2603, 0.2566, 0.2713),
    read=stl10.read,
    urls=("http://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",),
    md5={
        "stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb",
        "train_X.bin": "918c2871b30a85fa023e0c44e0bee87f",
        "train_y.bin": "5a34089d4802c674881badbb80307741",
        "test_X.bin": "7f263ba9f9e0b06b93213547f721ac82",
        "test_y.bin": "36f9794fa4beb8a2c72628de14fa638e",
    },
)

_ALL = (CIFAR10, CIFAR100, MNIST, FASHION_MNIST, SVHN, STL10)
SOURCES = {it.name: it for it in _ALL}
