"""Train a model whose workers exchange compressed gradients.

    python train.py --config=configs/default.py --workdir=runs/digits
    python train.py --config=configs/default.py --workdir=runs/eight \\
        --config.compressor='qsgd(levels=7)' --config.memory=none --config.workers=8

Every key of the config can be set with --config.KEY=VALUE. A folder that holds a run of
the same config goes on where it stands.
"""

import sys

from jaxcomp import parallel
from jaxcomp.cli.train import main

if __name__ == "__main__":
    parallel.keep_pages()
    sys.exit(main(sys.argv[1:], __doc__ or ""))
