"""ResNet9 of the DAWNBench records on CIFAR-10, an operator for each layer or for all.

Reproduces: Dutta et al., AAAI 2020, arXiv:1911.08250: ResNet-9, layer-wise against
            entire-model. Parameters of the operators are the defaults of its code.
Published:  not in this form; its README quotes 94 % from the record it starts from.
Expected:   not run here.
Cost:       not run here; 2 workers, a GPU each. Start with `,configs/parts/small`.
Command:    python train.py --config=configs/papers/layer_wise.py:top_k
            python train.py --config=configs/papers/layer_wise.py:random_k
            python train.py --config=configs/papers/layer_wise.py:threshold
            python train.py --config=configs/papers/layer_wise.py:adaptive_threshold
            python train.py --config=configs/papers/layer_wise.py:terngrad
            python train.py --config=configs/papers/layer_wise.py:qsgd
            Each of them for the entire model: --config.scope=whole_tree
Baseline:   python train.py --config=configs/papers/layer_wise.py:none
Differs:    The code's workers each take 512 images a step and all images an epoch; here
            a step takes 512 in all, as in the record. Gradients there are sums over a
            batch, so that V = 0.001 is v = V / 512 here. That is passed by nearly all,
            so this cap leaves nothing out and messages are larger than gradients.
"""

from ml_collections import ConfigDict

from configs import cifar10

OPERATORS = {
    "none": "none",
    "top_k": "top_k(keep=0.5)",
    "random_k": "random_k(keep=0.5)",
    "threshold": "threshold(v=1.953125e-06, cap=1)",
    "adaptive_threshold": "adaptive_threshold(cap=0.5)",
    "terngrad": "terngrad",
    "qsgd": "qsgd(levels=255, bucket=None)",
}
SLOW = ("random_k", "threshold")  # these two get 40 epochs, the others 24


def get_config(operator: str = "top_k") -> ConfigDict:
    config = cifar10.get_config()
    config.workers = 2
    config.model = "resnet9"
    config.augment = "crop(pad=4) | flip | cutout(size=8)"
    config.compressor = OPERATORS[operator]
    config.memory = "none"
    config.scope = "per_leaf"
    config.optimizer = "sgd(momentum=0)"
    config.batch_size = 512
    epochs = 40 if operator in SLOW else 24
    config.train_for = f"{epochs} epochs"
    config.learning_rate = 0.4
    config.schedule = f"piecewise_linear(epochs=[0, 5, {epochs}], values=[0, 1, 0])"
    return config
