"""CHOCO-SGD with signs on a ring of 8: a three-layer LSTM on WikiText-2.

Reproduces: Koloskova et al., ICLR 2020, arXiv:1907.09356, by the sizes of its public
            code: 3 layers of 650, 30 words, dropout 0.4, gradients clipped at 0.4.
Published:  not in this form: the code has scripts and no table.
Expected:   not run here; configs/lstm.py is an LSTM in small, with figures.
Cost:       not run here; 60 epochs on 8 workers.
Command:    jaxcomp data prepare wikitext2 --archive DIR
            python train.py --config=configs/papers/choco_lstm.py
Baseline:   the same with --config.mixer=d_psgd --config.compressor=none
Differs:    rate, batch, epochs and gamma are choices of this file: tune them.
"""

from ml_collections import ConfigDict

from configs import lstm


def get_config() -> ConfigDict:
    config = lstm.get_config()
    config.task = "language(bptt=30)"
    config.dataset = "wikitext2"
    config.model = "lstm(width=650, layers=3, dropout=0.4)"
    config.workers = 8
    config.mixer = "choco_overlapped(gamma=0.5)"
    config.topology = "ring"
    config.exchange = config.memory = ""
    config.compressor = "sign"
    config.batch_size = 256
    config.eval_batch_size = 8
    config.clip = "local(limit=0.4)"
    config.train_for = "60 epochs"
    return config
