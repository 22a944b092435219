"""WideResNets of 34 and 100 layers: QSGD of one level, singular vectors, or as it is.

Reproduces: the speed test of stsievert/WideResNet-pytorch, whose successor is ATOMO,
            arXiv:1806.04090.
Published:  speed on 2 p2.xlarge hosts. 34 layers: qsgd 1.33, dense 2.33 and svd 1.77
            steps a second. 100 layers: qsgd 2.22, dense 1.36 and svd 1.65 seconds a
            step. So compression was slower there. No accuracies.
Expected:   not run here.
Cost:       not run here; 200 epochs on 2 workers.
Command:    python train.py --config=configs/papers/wide_resnet.py:34
            python train.py --config=configs/papers/wide_resnet.py:100
            With singular vectors: --config.compressor='atomo(rank=4, chance=relative)'
Baseline:   the same with ,configs/parts/exact.py after the config
Differs:    the code sums gradients, so its rate grows with the workers; so it does
            here, by lr_scaling. Its rate falls in every third epoch only; here in each.
            Momentum and decay are read there and not used, so here there are none.
"""

from ml_collections import ConfigDict

from configs import cifar10


def get_config(layers: str = "34") -> ConfigDict:
    config = cifar10.get_config()
    config.workers = 2
    config.model = f"wide_resnet(depth={layers}, width=1)"
    config.compressor = "qsgd_sparse"
    config.memory = "none"
    config.scope = "per_leaf"
    config.optimizer = "sgd(momentum=0)"
    config.weight_decay = 0.0
    config.batch_size = 1024
    config.train_for = "200 epochs"
    config.learning_rate = 0.1
    config.lr_scaling = "linear"
    # 0.97 to the power of a third of the epoch.
    config.schedule = "piecewise_linear(epochs=[0, 200], values=[1, 0.131])"
    return config
