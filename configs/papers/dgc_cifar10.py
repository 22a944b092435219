"""Deep Gradient Compression to a thousandth: ResNet-20 or ResNet-110 on CIFAR-10.

Reproduces: Lin et al., ICLR 2018, arXiv:1712.01887, by the settings of its public code.
Published:  91.5 % for ResNet-20 and 93.5 % for ResNet-110 on 8 GPUs, about, as read off
            the plots of that code, where its lines lie on those of the baseline.
Expected:   not run here.
Cost:       not run here; 200 epochs on 8 workers.
Command:    python train.py --config=configs/papers/dgc_cifar10.py:resnet20
            python train.py --config=configs/papers/dgc_cifar10.py:resnet110
Baseline:   the same with ,configs/parts/exact.py after the config
Differs:    too many elements above the threshold: the largest go, not the first ones.
            The rate falls with each step, not with each epoch. Where tensors are sent
            as they are, a worker has its own momentum, not that of the mean; steps are
            the same.
"""

from ml_collections import ConfigDict

from configs import cifar10


def get_config(model: str = "resnet20") -> ConfigDict:
    config = cifar10.get_config()
    config.workers = 8
    config.model = model
    config.compressor = "dgc_top_k(keep=0.001)"
    config.memory = "dgc(momentum=0.9)"
    config.scope = "per_leaf"
    config.policy = (("ndim<2", "none"),)
    config.keep_warmup = "exponential(epochs=5)"
    config.optimizer = "dgc_sgd(momentum=0.9)"
    config.batch_size = 1024
    config.train_for = "200 epochs"
    config.learning_rate = 0.1
    config.lr_scaling = "linear"
    config.schedule = "cosine(begin=5)"
    config.warmup = "5 epochs"
    config.warmup_from = 1 / 8
    config.weight_decay = 1e-4
    return config
