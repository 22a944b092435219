"""Train a model whose workers exchange compressed gradients.

    python train.py --config=configs/default.py --workdir=runs/digits
    python train.py --config=configs/default.py --workdir=runs/eight \
        --config.compressor='qsgd(levels=7)' --config.memory=none --config.workers=8

Every key of the config can be set with --config.KEY=VALUE. A folder that holds a run of
the same config goes on where it stands.
"""

import os
import sys

from absl import app, flags, logging
from ml_collections import config_flags

from jaxcomp.cli.pipes import quietly
from jaxcomp.cli.train import parse_flags, run

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "Config file, such as configs/default.py.", lock_config=True
)
WORKDIR = flags.DEFINE_string("workdir", None, "Run folder.", required=True)
flags.mark_flag_as_required("config")
EVALUATE = flags.DEFINE_enum(
    "evaluate", None, ["best", "latest"], "Only evaluate this checkpoint of the run."
)
CLUSTER = {
    "JAXCOMP_COORDINATOR": flags.DEFINE_string(
        "coordinator", None, "host:port of process 0, where there are several."
    ),
    "JAXCOMP_PROCESSES": flags.DEFINE_integer("processes", None, "Their number."),
    "JAXCOMP_PROCESS": flags.DEFINE_integer("process", None, "Index of this one."),
}


def main(argv: list[str]) -> None:
    logging.set_verbosity(logging.FATAL)  # orbax logs what it writes and what it raises
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {' '.join(argv[1:])}")
    for variable, flag in CLUSTER.items():
        if flag.value is not None:
            os.environ[variable] = str(flag.value)
    sys.exit(quietly(lambda: run(CONFIG.value, WORKDIR.value, EVALUATE.value)))


if __name__ == "__main__":
    app.run(main, flags_parser=parse_flags)
