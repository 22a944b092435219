"""CHOCO-SGD with signs, ResNet-20 on CIFAR-10: rings of 8 and 16, a social graph of 32.

Reproduces: Koloskova et al., ICLR 2020, arXiv:1907.09356, by its public code.
Published:  not in this form: the code has scripts and no table.
Expected:   not run here; configs/cifar10_choco.py is this in small, with figures.
Cost:       not run here; 300 epochs on 8, 16 or 32 workers.
Command:    python train.py --config=configs/papers/choco_cifar10.py:ring8
            python train.py --config=configs/papers/choco_cifar10.py:ring16
            python train.py --config=configs/papers/choco_cifar10.py:social32
Baseline:   the same with --config.mixer=d_psgd --config.compressor=none
Differs:    x_hat begins at the models, not at 0. All workers have one rate; on the
            social graph there, each scales it by its own neighbours. The code's
            ResNet-20 has convolutions in its shortcuts.
"""

from ml_collections import ConfigDict

from configs import cifar10_choco

# With gamma, the batch for which the rate of 0.1 is known, and the workers that the
# best connected one hears, itself included.
GRAPHS = {
    "ring8": ("ring", 8, 0.45, 24, 3),
    "ring16": ("ring", 16, 0.5, 64, 3),
    "social32": ("social(weights=max_degree)", 32, 0.5, 64, 15),
}


def get_config(graph: str = "ring8") -> ConfigDict:
    config = cifar10_choco.get_config()
    config.topology, config.workers, gamma, base, heard = GRAPHS[graph]
    config.mixer = f"choco_overlapped(gamma={gamma})"
    config.augment = "crop(pad=4, mode=zero) | flip"
    config.batch_size = 128 * config.workers
    config.train_for = "300 epochs"
    config.learning_rate = 0.1
    config.lr_scaling = f"degree(base_batch_size={base})"
    config.schedule = "multistep(epochs=[150, 225], factor=0.1)"
    config.warmup = "5 epochs"
    config.warmup_from = base / (128 * heard)
    config.weight_decay = 1e-4
    config.decay = "!*BatchNorm*"
    return config
