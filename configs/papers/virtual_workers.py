"""Four virtual workers of 32 images on one device: ResNet-44 or MobileNetV2, CIFAR-10.

Reproduces: the runs of feifeibear/Communication-Efficient-DNN, which is Deep Gradient
            Compression on convNet.pytorch.
Published:  no figures.
Expected:   not run here.
Cost:       not run here; 164 or 200 epochs on one device.
Command:    python train.py --config=configs/papers/virtual_workers.py:resnet44
            python train.py --config=configs/papers/virtual_workers.py:mobilenet_v2
Baseline:   the same with ,configs/parts/exact.py after the config
Differs:    images are normalised by the figures of CIFAR, not of ImageNet. With
            flush_every a flush leaves the momenta as they are; there it clears them,
            and each epoch begins with one.
"""

from ml_collections import ConfigDict

from configs import cifar10

LENGTHS = {
    "resnet44": ("164 epochs", [81, 122]),
    "mobilenet_v2": ("200 epochs", [60, 120, 180]),
}


def get_config(model: str = "resnet44") -> ConfigDict:
    config = cifar10.get_config()
    config.mapper = "vmap"
    config.workers = 4
    config.model = model
    config.augment = "crop(pad=4, mode=grey) | flip"
    config.compressor = "top_k(keep=0.001)"
    config.memory = "dgc(momentum=0.9, nesterov=True)"
    config.scope = "per_leaf"
    config.keep_warmup = "listed(keeps=[0.25, 0.0625, 0.015625, 0.004])"
    config.optimizer = "sgd(momentum=0)"
    config.clip = "scaled(limit=5)"
    config.batch_size = 128
    config.train_for, epochs = LENGTHS[model]
    config.learning_rate = 0.1
    config.schedule = f"multistep(epochs={epochs}, factor=0.1)"
    config.weight_decay = 1e-4
    config.decay_at = "gradient"
    return config
