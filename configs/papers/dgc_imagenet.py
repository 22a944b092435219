"""Deep Gradient Compression to a thousandth: ResNet-50 or VGG-16 on ImageNet.

Reproduces: Lin et al., ICLR 2018, arXiv:1712.01887, by the settings of its public code.
Published:  README of that code, 32 GPUs, steps of the rate: top-1 76.3 % for ResNet-50
            and 73.3 % for VGG-16 with BatchNorm; without compression, torchvision's
            76.2 % and 73.4 %.
Expected:   not run here.
Cost:       not run here; 90 epochs of ImageNet on 32 workers.
Command:    python train.py --config=configs/papers/dgc_imagenet.py:resnet50
            python train.py --config=configs/papers/dgc_imagenet.py:vgg16
Baseline:   the same with ,configs/parts/exact.py after the config
Differs:    the code's ResNet-50 has Nesterov's momentum for the weight decay only; here
            also in the memory, because one without the other is refused.
"""

from ml_collections import ConfigDict

from configs.papers import dgc_cifar10


def get_config(model: str = "resnet50") -> ConfigDict:
    config = dgc_cifar10.get_config()
    config.dataset = "imagenet"
    config.model = {"resnet50": "resnet50", "vgg16": "vgg16(hidden=4096)"}[model]
    config.augment = "flip"  # windows are cut when a picture is decoded
    config.workers = 32
    config.batch_size = 1024
    config.keep_warmup = ""
    config.train_for = "90 epochs"
    config.learning_rate = 0.0125
    config.schedule = "multistep(epochs=[30, 60, 80], factor=0.1)"
    config.warmup_from = 1 / 32
    config.weight_decay = 5e-5
    if model == "resnet50":
        config.memory = "dgc(momentum=0.9, nesterov=True)"
        config.optimizer = "dgc_sgd(momentum=0.9, nesterov=True)"
        config.weight_decay = 1e-4
        config.decay = "!*BatchNorm*"
    return config
