"""ResNet-20 on CIFAR-10, top 1 % of the gradients with error feedback, 4 workers.

Reproduces: nothing published; a short schedule that compares methods fairly.
Expected:   82 % test accuracy, within 1.5 points of the baseline, 23 times fewer bytes.
Cost:       about 10 minutes on 2 CPU cores.
Command:    jaxcomp data prepare cifar10 --archive cifar-10-binary.tar.gz
            python train.py --config=configs/cifar10.py --workdir=runs/cifar10
Baseline:   the same with --config.exchange=exact
"""

from ml_collections import ConfigDict

from configs import default


def get_config() -> ConfigDict:
    config = default.get_config()
    config.dataset = "cifar10"
    config.model = "resnet20"
    config.augment = "crop(pad=4) | flip"
    config.compressor = "top_k(keep=0.01)"
    config.scope = "only_large(min_size=1000)"
    config.batch_size = 64
    config.train_for = "5 epochs"
    config.learning_rate = 0.05
    config.schedule = "piecewise_linear(epochs=[0, 1, 5], values=[0.1, 1, 0])"
    config.warmup = ""
    return config
