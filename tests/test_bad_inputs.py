"""What people get wrong, and the words of the one message that they are told.

A row is what is typed and what the message has to say: the value, and the way out. All
of them fail before anything is compiled, so that a row costs milliseconds.
"""

import os
import shlex

import pytest
from ml_collections import ConfigDict, config_dict

from jaxcomp import cli
from jaxcomp.cli import train
from jaxcomp.cli.config import override
from jaxcomp.mixers import local

# Words of train.py; RUN is a folder that does not exist, FILES has the files below.
FILES = {
    "text.py": "no Python at all",
    "binary.py": "\0",
    "empty.py": "",
    "none.py": "def get_config():\n    pass\n",
    "dict.py": "def get_config():\n    return {'workers': 4}\n",
    "few.py": "from ml_collections import ConfigDict\n"
    "def get_config():\n    return ConfigDict({'workers': 4})\n",
    "word.py": "from configs import default\n"
    "def get_config():\n    return default.get_config().update(workers='four')\n",
    "typo.py": "def update(config):\n    config.leraning_rate = 0.2\n",
    "taken.md": "mine",
}
LINKS = {"gone": "nowhere", "loop": "loop"}


def overriding(config: str, keys: str) -> str:
    """The words of train.py for KEY=VALUE pairs."""
    flags = [f"--config.{word}" for word in shlex.split(keys)]
    return shlex.join([f"--config=configs/{config}.py", "--workdir=RUN", *flags])


DEFAULT = "--config=configs/default.py --workdir=RUN"
COMMANDS = [
    # --- Flags ----------------------------------------------------------------------
    ("", "required: --config. Standard configs: adam_qsgd, alexnet, al"),
    (f"{DEFAULT} --suffix=b", "--workdir names another one: give one of the two"),
    ("--config=default --suffix=a/b", "such as 'a-b', not 'a/b'"),
    ("--workdir=RUN", "required: --config. Standard configs: adam_qsgd, alexnet, al"),
    (
        f"{DEFAULT} --wrokdir=b",
        "unknown argument '--wrokdir=b'. Did you mean 'workdir'?",
    ),
    (f"{DEFAULT} --proceses=2", "Did you mean 'processes'?"),
    (f"{DEFAULT} more", "unknown argument 'more'. Valid: config"),
    (f"{DEFAULT} --evaluate=first", "best', 'last' or the number of its step, not 'f"),
    (f"{DEFAULT} --split=train", "--split says what --evaluate looks at: add --eval"),
    (f"{DEFAULT} --evaluate=best --split=tset", "'tset' (choose from"),
    (f"{DEFAULT} --evaluate=best --dry-run", "trains nothing and --evaluate neither"),
    (f"{DEFAULT} --evaluate=best", "holds no run: no config.json. Train first"),
    # --- The folder -----------------------------------------------------------------
    ("--config=configs/default.py --workdir=", "--workdir is empty: name a folder"),
    ("--config=configs/default.py --workdir=' '", "--workdir is empty: name a folder"),
    (
        "--config=configs/default.py --workdir=docs",
        "docs holds other things than a run",
    ),
    (
        "--config=configs/default.py --workdir=README.md",
        "README.md is a file, and a run",
    ),
    ("--config=configs/default.py --workdir=LICENSE/a", "LICENSE is a file, and a run"),
    (f"--config=configs/default.py --workdir={'long' * 75}", "used: File name too lon"),
    ("--config=configs/default.py --workdir=FILES/gone", "gone is a link that leads n"),
    ("--config=configs/default.py --workdir=FILES/loop/a", "loop is a link that leads"),
    # --- The file of the config -----------------------------------------------------
    ("--config=configs/defualt.py --workdir=RUN", "mean 'configs/default.py'?"),
    ("--config=chocco --workdir=RUN", "mean 'choco'?"),
    ("--config=cifar10-dgc --workdir=RUN", "mean 'cifar10_dgc'?"),
    ("--config=configs --workdir=RUN", "configs: Is a directory"),
    ("--config= --workdir=RUN", "--config is empty: name a file, such as"),
    (
        "--config=FILES/xyzzy.py --workdir=RUN",
        "No such file or directory. `jaxcomp list configs` shows the standard ones",
    ),
    ("--config=FILES/text.py --workdir=RUN", "text.py is not a Python file: invalid"),
    ("--config=FILES/binary.py --workdir=RUN", "binary.py is not a Python file: "),
    ("--config=FILES/empty.py --workdir=RUN", "empty.py has no function get_config"),
    ("--config=FILES/none.py --workdir=RUN", "returns None, not a ConfigDict"),
    (
        "--config=FILES/dict.py --workdir=RUN",
        "returns {'workers': 4}, not a ConfigDict",
    ),
    ("--config=FILES/few.py --workdir=RUN", "the config lacks accumulate, batch_norm"),
    ("--config=configs/default.py:x --workdir=RUN", "get_config takes other arguments"),
    # --- Parts of a config ----------------------------------------------------------
    (
        "--config=parts/dgc --workdir=RUN",
        "parts/dgc is a part, which changes a whole config: name one before it, such "
        "as --config=default,parts/dgc",
    ),
    (
        "--config=default,cifar10_dgc --workdir=RUN",
        "cifar10_dgc is a whole config, and only the first file of --config is one",
    ),
    ("--config=default,parts/dcg --workdir=RUN", "Did you mean 'parts/dgc'?"),
    ("--config=default,dgc --workdir=RUN", "Did you mean 'parts/dgc'?"),
    ("--config=default, --workdir=RUN", "'default,' names nothing beside a comma"),
    ("--config=,default --workdir=RUN", "',default' names nothing beside a comma"),
    ("--config=default,FILES/empty.py --workdir=RUN", "has no function update; conf"),
    ("--config=default,parts/sign:7 --workdir=RUN", "update takes other arguments"),
    (
        "--config=default,FILES/typo.py --workdir=RUN",
        "typo.py sets 'leraning_rate', which the config before it does not have. Did "
        "you mean 'learning_rate'?",
    ),
    ("--config=default,parts/choc --workdir=RUN", "Did you mean 'parts/choco'?"),
    ("--config=default,parts/top_k:2 --workdir=RUN", "keep is the fraction kept"),
    # --- Keys -----------------------------------------------------------------------
    ("--config configs/default.py --workdir=RUN --config.nope=1", "no key 'nope'"),
    (f"{DEFAULT} --config.nope=1", "no key 'nope'. Did you mean 'scope'? Valid: "),
    (f"{DEFAULT} --config.leraning_rate=1", "Did you mean 'learning_rate'?"),
    (f"{DEFAULT} --config.optimizer.learning_rate=-1", "Did you mean 'learning_rate'?"),
    (f"{DEFAULT} --config.workers", "--config.workers needs a value"),
    (
        f"{DEFAULT} --config.batch_per_worker=8",
        "batch_size=64 is of all workers together, and batch_per_worker=8 of each: ",
    ),
    (f"{DEFAULT} --config.batch_size=0", "batch_size is a whole number of at least"),
    (
        f"{DEFAULT} --config.batch_size=0 --config.batch_per_worker=9 "
        "--config.accumulate=2",
        "a batch of 36 does not divide over 4 workers with accumulate=2",
    ),
    (f"{DEFAULT} --config.keep_last=0", "keep_last is a whole number of at least"),
    (
        f"{DEFAULT} --config.init_from=no",
        "init_from: no holds no checkpoint 'last';",
    ),
    # --- Several processes ----------------------------------------------------------
    (f"{DEFAULT} --processes=2", "is set without a coordinator: give --coordinator="),
    (f"{DEFAULT} --process=0", "is set without a coordinator: give --coordinator="),
    (f"{DEFAULT} --processes=two", "argument --processes: invalid int value: 'two'"),
    (f"{DEFAULT} --coordinator=here:1", "needs the number of processes and the index"),
    (f"{DEFAULT} --coordinator=auto", "auto finds neither Open MPI, Slurm, Kubern"),
    (f"{DEFAULT} --join-timeout=soon", "is a number of seconds above 0, not 'soon'"),
    (f"{DEFAULT} --peer-timeout=0", "is a number of seconds above 0, not '0'"),
    (
        f"{DEFAULT} --coordinator=here --processes=2 --process=0",
        "HOST:PORT with a port of 1 to 65535, not 'here'",
    ),
    (
        f"{DEFAULT} --coordinator=a:1 --processes=2 --process=2",
        "process 2 is not one of 0 to 1",
    ),
    (
        f"{DEFAULT} --coordinator=a:1 --processes=0 --process=0",
        "processes are 1 or more, not 0",
    ),
    (
        f"{DEFAULT} --coordinator=a:1 --processes=3 --process=0",
        "4 workers do not divide over 3 processes",
    ),
    (
        f"{DEFAULT} --coordinator=a:1 --processes=2 --process=0 --config.mapper=vmap",
        "mapper 'vmap' simulates workers in one process; use 'pmap'",
    ),
]
# KEY=VALUE of configs/default.py.
DURATIONS = (
    *("checkpoint_every", "dense_for", "eval_every", "eval_workers_every"),
    *("flush_every", "keep_every", "layers_every", "train_for", "warmup"),
)
KEYS = [
    # --- Numbers --------------------------------------------------------------------
    ("workers=-2", "workers is a whole number of at least 0, not -2"),
    ("workers=0 mapper=vmap", "simulates any number of them on one: say how many"),
    ("workers=0 batch_size=63", "a batch of 63 does not divide over 8 workers"),
    ("workers=four", "workers is a whole number, not 'four'"),
    ("workers=2.5", "workers is a whole number, not 2.5"),
    ("workers=1000", "a multiple of 1000, such as 1000"),
    ("workers=64", "64 workers need 64 devices and there are 8. Use mapper='vmap'"),
    ("batch_size=0", "batch_size is a whole number of at least 1, not 0"),
    (
        "batch_size=63",
        "63 does not divide over 4 workers: take a multiple of 4, such as",
    ),
    ("batch_size=63", "such as 64"),
    ("batch_size=2000", "a batch of 2000 is more than 1437 examples"),
    ("accumulate=0", "accumulate is a whole number of at least 1, not 0"),
    ("accumulate=3", "64 does not divide over 4 workers with accumulate=3: take a"),
    ("eval_batch_size=-1", "eval_batch_size is a whole number of at least 0, not -1"),
    ("eval_batch_size=30", "eval_batch_size: a batch of 30 does not divide over 4"),
    ("seed=-1", "seed is a whole number from 0 to 4294967295, not -1"),
    ("seed=4294967296", "seed is a whole number from 0 to 4294967295, not 4294967296"),
    ("learning_rate=-1", "learning_rate is a number of at least 0, not -1"),
    ("learning_rate=nan", "learning_rate is a number, not 'nan'"),
    ("learning_rate=inf", "learning_rate is a number, not 'inf'"),
    ("learning_rate=high", "learning_rate is a number, not 'high'"),
    ("weight_decay=-1e-4", "weight_decay is a number of at least 0, not -0.0001"),
    ("augment='crop(pad=-1)'", "pad is a whole number of at least 0, not -1"),
    ("augment='crop(16)'", "pad is below the 16 pixels of a side of an image, not 16"),
    ("eval_view='ten_crop(20)'", "size 20 is larger than an image of 16x16"),
    ("eval_view=middle", "unknown eval_view 'middle'"),
    ("label_smoothing=1", "label_smoothing"),
    ("label_smoothing=-0.1", "label_smoothing"),
    ("augment='crop | flap'", "unknown augmentation 'flap'. Did you mean 'flip'?"),
    ("clip='local(limit=-1)'", "limit is a positive number, not -1"),
    ("clip=local", "clip 'local' needs limit"),
    ("clip=locl", "unknown clip 'locl'. Did you mean 'local'?"),
    ("log_every=0", "log_every is a whole number of at least 1, not 0"),
    # --- Durations ------------------------------------------------------------------
    ("train_for=", "train_for is empty: write for example '15 epochs'"),
    ("train_for=15", "not a duration: '15'. Write for example"),
    ("train_for='ten epochs'", "train_for: not a number in 'ten epochs'"),
    ("train_for='10 epoks'", "Did you mean 'epoch'?"),
    ("train_for='-3 epochs'", "train_for: a duration is positive, not '-3 epochs'"),
    ("train_for='nan epochs'", "a duration is positive, not 'nan epochs'"),
    ("train_for='1.5 steps'", "a number of steps is whole, not '1.5 steps'"),
    *(
        (f"{key}='1e308 epochs'", f"{key}: 1e+308 epochs are more than 2,147,483,647 s")
        for key in DURATIONS
    ),
    (
        "regime=\"(('16 epochs', {'learning_rate': 0.1}),)\"",
        "regime '16 epochs' begins after step 352, and the run of '15 epochs' ends with"
        " step 330: leave it out",
    ),
    *(
        (f"mixer='{name}(h=65537)' memory=none", "number from 1 to 65536, not 65537")
        for name in local.REGISTRY
    ),
    ("train_for='3e9 steps'", "train_for: 3e+09 steps are more than 2,147,483,647 st"),
    ("eval_every=", "eval_every is empty: write for example '1 epoch'"),
    ("eval_every='100 steps'", "and '100 steps' is 4.55 epochs of 22 steps"),
    ("eval_workers_every='0.5 epochs'", "eval_workers_every counts in whole epochs"),
    ("warmup='16 epochs'", "a warmup of '16 epochs' is longer than the run"),
    ("checkpoint_every='1'", "checkpoint_every: not a duration: '1'"),
    ("keep_every=often", "keep_every: not a duration: 'often'"),
    ("dense_for='1 year'", "dense_for: unknown unit in '1 year'"),
    ("flush_every='0 steps'", "flush_every: a duration is positive, not '0 steps'"),
    ("layers_every='10 steps'", "layers_every counts in whole epochs"),
    ("profile='10-15'", "not a window of steps: '10-15'. Write for example 'steps 10"),
    ("profile='steps 9 to 8'", "has the steps 1 to 330, and no window 'steps 9 to 8'"),
    ("profile='steps 0 to 9'", "has the steps 1 to 330, and no window 'steps 0 to 9'"),
    ("profile='step 331'", "the run has the steps 1 to 330, and no window"),
    # --- Choices --------------------------------------------------------------------
    ("mapper=pamp", "unknown mapper 'pamp'. Valid: pmap, shard_map, vmap"),
    ("batch_norm=joint", "unknown batch_norm 'joint'. Valid: local, sync"),
    ("nonfinite=ignore", "nonfinite is one of skip, stop, not 'ignore'"),
    ("platform=gup", "unknown platform 'gup'. Valid: ('', 'cpu', 'gpu', 'tpu')"),
    ("platform=gpu", "platform 'gpu' is asked for, and jax found cpu devices. Install"),
    ("platform=tpu mapper=vmap", "'tpu' is asked for, and jax found cpu devices"),
    ("deterministic=maybe", "deterministic is True or False, not 'maybe'"),
    ("compute_dtype=float8", "compute_dtype is one of bfloat16, float16, float32, not"),
    ("compute_dtype=float16", "below 6e-8 into zeros: set loss_scale to 'dynamic'"),
    ("loss_scale=dynamc", "unknown loss_scale 'dynamc'. Did you mean 'dynamic'?"),
    ("loss_scale='dynamic(start=0)'", "start is a number in [1.0, 16777216.0], not 0"),
    ("matmul_precision=tf32", "unknown matmul_precision 'tf32'. Valid: bfloat16"),
    ("lr_scaling=liner", "Did you mean 'linear'?"),
    ("lr_scaling=degree", "degree: this scaling is that of a graph: set topology"),
    ("topology=ring", "topology 'ring' is of no use to an exchange of gradients"),
    (
        "mixer='choco(gamma=1)' exchange= memory=none",
        "needs a topology, such as 'ring'",
    ),
    ("policy='(3,)'", "a rule is a pair such as ('*/bias', 'none'), not 3"),
    ("policy=3", "policy is a tuple, not 3"),
    ("breakdown=maybe", "breakdown is True or False, not 'maybe'"),
    ("loggers=csv", "loggers is a tuple, not 'csv'"),
    ("loggers=\"('tensorbord',)\"", "Did you mean 'tensorboard'?"),
    ("loggers=\"('csv', 'csv')\"", "loggers name 'csv' twice: leave one of them out"),
    ("loggers=\"('wandb(a=1)',)\"", "logger 'wandb' has no argument 'a'"),
    ("loggers=\"('my.nowhere:a',)\"", "there is no module 'my'. Install it"),
    ("loggers='(3,)'", "a logger is a string, not 3"),
    ("layers_every='1 epoch' overlap=2", "set overlap to 1, not 2, or layers_every"),
    (
        "layers_every='1 epoch' mixer='choco(gamma=1)' exchange= memory=none",
        "'choco(gamma=1)' sends models: set layers_every to ''",
    ),
    # --- Names that are not there, or elsewhere -------------------------------------
    ("compressor=topk", "unknown compressor 'topk'. Did you mean 'top_k'?"),
    ("compressor=", "compressor is empty"),
    (
        "compressor=powersgd",
        "power_sgd is an exchange: --config.exchange='power_sgd(rank=2)'",
    ),
    ("compressor=error_feedback", "is a memory: --config.memory='error_feedback'"),
    ("exchange=choco", "choco is a mixer: --config.mixer="),
    ("exchange='top_k(keep=0.1)'", "top_k is a compressor: --config.compressor="),
    ("exchange=gahter", "Did you mean 'gather'?"),
    ("memory=ef", "unknown memory 'ef'. Did you mean 'error_feedback'?"),
    ("memory=sgd", "sgd is an optimizer: --config.optimizer="),
    ("scope=ring", "ring is a topology: --config.topology='ring'"),
    ("optimizer=adm", "Did you mean 'adam'?"),
    ("optimizer=cosine", "cosine is a schedule: --config.schedule='cosine'"),
    ("mixer=chocco", "Did you mean 'choco'?"),
    ("schedule=linear", "Did you mean 'piecewise_linear'?"),
    ("model=resnet21", "unknown model 'resnet21'. Did you mean 'resnet"),
    ("model=cifar10", "cifar10 is a dataset: --config.dataset='cifar10'"),
    ("dataset=digit", "unknown dataset 'digit'. Did you mean 'digits'?"),
    ("dataset=birds", "unknown dataset 'birds'. Valid: cifar10"),
    ("task=clasification", "Did you mean 'classification'?"),
    ("task=my.nowhere:task", "there is no module 'my'. Install it, or put the folder"),
    ("partition=sort", "unknown partition 'sort'. Did you mean 'sorted'?"),
    # --- Arguments ------------------------------------------------------------------
    ("compressor='top_k(keep=5%)'", "'5%' is no number: write 0.05"),
    ("compressor='top_k(keep=5)'", "keep is the fraction kept, in (0, 1], not 5"),
    ("compressor='top_k(keep=0.1'", "not a spec: '(' was never closed"),
    ("compressor='top_k(kep=0.1)'", "no argument 'kep'. Did you mean 'keep'?"),
    ("compressor='qsgd(levels=0)'", "levels is a whole number"),
    ("exchange='power_sgd(rank=0)'", "rank is a whole number of at least 1, not 0"),
    ("memory='dgc(momentum=1)'", "momentum is a factor in [0, 1), not 1"),
    ("optimizer='sgd(momentum=1)'", "momentum is a number in [0, 1), not 1"),
    ("optimizer='sgd(momentum=-0.1)'", "momentum is a number in [0, 1), not -0.1"),
    ("optimizer='sgd(nesterov=1)'", "nesterov is True or False, not 1"),
    ("optimizer='adam(b1=1)'", "b1 is a number in [0, 1), not 1"),
    ("optimizer='adam(eps=0)'", "eps is a number above 0, not 0"),
    ("optimizer='sgd(lr=1)'", "has no argument 'lr'"),
    ("model='tiny(width=0)'", "width=0 is not valid; it must be at least 1"),
    ("model='tiny(width=a)'", "width is a whole number, not a"),
    ("model='tiny(widht=9)'", "no argument 'widht'. Did you mean 'width'?"),
    ("model='resnet20(depth=32)'", "'resnet20' has no argument 'depth'"),
    ("model='resnet20(shortcut=C)'", "shortcut='C' is not valid; valid: ('A', 'B')"),
    ("model='wide_resnet(dropout=1)'", "dropout=1 is not valid; it must be in [0, 1)"),
    ("model='tiny(4)'", "a model is a name with named arguments, not 'tiny(4)'"),
    ("model=tiny(", "not a spec: '(' was never closed"),
    ("dataset='digits(size=0)'", "digits: size is a whole number of at least 1, not 0"),
    (
        "dataset='digits(size=big)'",
        "digits: size is a whole number of at least 1, not big",
    ),
    ("dataset='digits(sise=8)'", "no argument 'sise'. Did you mean 'size'?"),
    ("partition='dirichlet(alpha=0)'", "alpha is a number above 0, not 0"),
    ("partition='random(reshuffle=1)'", "reshuffle is True or False, not 1"),
    ("schedule='cosine(final=-1)'", "final is a number in [0, 1], not -1"),
    (
        "schedule='multistep(epochs=3)'",
        "epochs is a list, of which each part is a number",
    ),
    ("schedule='multistep(epochs=[1, one])'", "of at least 0, not [1, one]"),
    ("schedule=multistep", "schedule 'multistep' needs epochs"),
    (
        "schedule='piecewise_linear(epochs=[0, 9], values=[1])'",
        "must rise and be as many as values",
    ),
    (
        "keep_warmup='listed(keeps=[2])'",
        "each part is a fraction kept, in (0, 1], not [2]",
    ),
    ("keep_warmup='exponential(epochs=0)'", "epochs is a whole number of at least 1"),
    ("keep_warmup=listed compressor=sign", "'sign' has none. Set keep_warmup to ''"),
]
AVERAGE = "logistic_regression(average='means')"
CONVEX = [
    ("dataset=digit", "unknown dataset 'digit'. Did you mean 'digits'?"),
    ("dataset=libsvm(path='nowhere')", "nowhere: No such file or directory. Sets to"),
    ("dataset=libsvm(path='docs')", "docs: Is a directory."),
    (f'task="{AVERAGE}"', "unknown average 'means'. Did you mean 'mean'?"),
    ("ema=0.9", "ema=0.9: the task has an average of its own"),
    ("mixer=", "topology 'ring' is of no use to an exchange of gradients: set mixer"),
]
INSPECT = "inspect --config=configs/default.py"
FIND = "find-rate --config=configs/default.py"
JAXCOMP = [
    ("data prepare cifar", "unknown data set 'cifar'. Did you mean 'cifar10'?"),
    ("data prepare mnist --archive FILES/nowhere.tar", "nowhere.tar"),
    ("data prepare mnist --archive ~xyzzy/a", "~xyzzy/a: no home folder is known: set"),
    ("topology", "needs SPEC and WORKERS: jaxcomp topology ring 16, or --list"),
    ("topology ring", "needs WORKERS: jaxcomp topology ring 16, or --list"),
    ("topology rign 4", "unknown topology 'rign'. Did you mean 'ring'?"),
    ("topology ring 0", "not 0"),
    ("topology ring 4 --draw FILES/ring.jpg", "--draw writes FILE.svg, not"),
    ("report FILES/nowhere", "nowhere"),
    ("list compresors", "no list of 'compresors'. Did you mean 'compressors'?"),
    ("explain topk", "unknown method 'topk'. Did you mean 'top_k'?"),
    ("explain 'top_k(keep=5)'", "top_k: keep is the fraction kept, in (0, 1], not 5"),
    ("explain 'sign | gahter'", "unknown method 'gahter'. Did you mean 'gather'?"),
    ("explain sign --elements=0", "--elements is at least 1, not 0"),
    ("explain sign --elements=9 --model=tiny", "one of --elements and --model"),
    ("explain sign --model=resnet21", "unknown model 'resnet21'. Did you mean"),
    ("completion tcsh", "invalid choice: 'tcsh'"),
    ("train --config=defualt --workdir=RUN", "Did you mean 'default'?"),
    ("train --workdir=RUN", "required: --config. Standard configs: adam_qsgd, "),
    ("tpology ring 4", "invalid choice: 'tpology'"),
    (f"{INSPECT} --target=a1000", "unknown target 'a1000'. Did you mean 'a100'?"),
    (f"{INSPECT} --target=a100 --hosts=0", "hosts is a whole number of at least 1"),
    (f"{INSPECT} --target=a100 --hots=2", "unknown argument '--hots=2'. Did you mean"),
    (f"{INSPECT} --target=a100 --config.mapper=vmap", "'pmap' or 'shard_map'"),
    ("find-rate", "the following arguments are required: --config"),
    (f"{FIND} --from=0", "rates grow from above 0 to a larger one, not from 0 to 10"),
    (
        f"{FIND} --from=1 --to=1",
        "rates grow from above 0 to a larger one, not from 1 to 1",
    ),
    (f"{FIND} --to=inf", "not from 1e-05 to inf"),
    (f"{FIND} --steps=9", "steps is at least 10, not 9"),
    (f"{FIND} --plot=RUN/a.jpg", "--plot writes FILE.svg, not"),
    (f"{FIND} --workdir=RUN", "unknown argument '--workdir="),
    ("launch -n 2", "name the program: jaxcomp launch -n 2 -- python train.py"),
    ("launch -- a", "give one of -n N, --hosts and --hostfile, not none"),
    ("launch -n 2 --hosts=a -- b", "and --hostfile, not -n and --hosts"),
    ("launch -n 0 -- a", "-n is at least 1, not 0"),
    ("launch -n 1 --devices-per-process=0 -- a", "--devices-per-process is at least"),
    ("launch -n 1 --restarts=-1 -- a", "--restarts is at least 0, not -1"),
    ("launch -n 1 --grace=nan -- a", "--grace is at least 0, not nan"),
    ("launch --hosts=a,a -- b", "host 'a' is named twice: write a:COUNT"),
    ("launch --hosts=a:0 -- b", "a host is NAME or NAME:PROCESSES, not 'a:0'"),
    ("launch --hosts=-x -- b", "a host is NAME or NAME:PROCESSES, not '-x'"),
    ("launch --hostfile=FILES/xyzzy -- b", "xyzzy: No such file or directory"),
    ("launch --hostfile=FILES/empty.py -- b", "empty.py names no host"),
    ("launch --hosts=a --stuck-after=9 -- b", "--stuck-after looks at processes of"),
    ("launch -n 1 -- RUN/nowhere", "nowhere cannot be started: No such file"),
]
ROWS = [
    *((train.main, words, says) for words, says in COMMANDS),
    *((train.main, overriding("default", keys), says) for keys, says in KEYS),
    *((train.main, overriding("convex/base", keys), says) for keys, says in CONVEX),
    *((cli.main, words, says) for words, says in JAXCOMP),
]


@pytest.mark.parametrize(("main", "words", "says"), ROWS)
def test_what_is_wrong_is_told_in_one_message(
    main, words, says, tmp_path, capsys, monkeypatch
):
    for name in [*os.environ]:
        if name.startswith("JAXCOMP_"):
            monkeypatch.delenv(name)
    for name in ("COORDINATOR", "PROCESSES", "PROCESS"):
        # What `main` sets is taken back.
        monkeypatch.setenv(f"JAXCOMP_{name}", "")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name, target in LINKS.items():
        (tmp_path / name).symlink_to(tmp_path / target)
    run = tmp_path / "run"
    words = words.replace("RUN", str(run)).replace("FILES", str(tmp_path))
    assert main(shlex.split(words)) in (1, 2)
    out, err = capsys.readouterr()
    first, *caret = err.rstrip("\n").split("\n")
    assert says in first
    assert first.startswith(("train.py: ", "jaxcomp ", "jaxcomp: "))
    assert not caret or (len(caret) == 2 and caret[1].strip() == "^")
    assert out == ""
    assert not run.exists()


def test_values_of_every_type_are_set(tmp_path):
    config = ConfigDict({"b": False, "f": 1.0, "i": 1, "s": "", "t": (), "c": {"i": 1}})
    config.n = config_dict.placeholder(float)
    words = (
        "--config.b=true --config.f 3 --config.i=-2 --config.s=x(y='1') --config.n=.5"
    )
    more = ["--config.t=[('a', 'b')]", "--config.c.i=4", "--config.i=7"]
    set_ = override(config, [*words.split(), *more])
    assert set_.to_dict() == {
        "b": True,
        "f": 3.0,
        "i": 7,
        "s": "x(y='1')",
        "t": (("a", "b"),),
        "c": {"i": 4},
        "n": 0.5,
    }
    assert type(set_.f) is float
    with pytest.raises(AttributeError):
        set_.new = 1


def test_there_are_a_hundred():
    assert len(ROWS) >= 100
