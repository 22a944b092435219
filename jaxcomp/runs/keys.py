"""The keys of a config, one row each: what they may be, and where they may change."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, Range, check, suggest


class Key(NamedTuple):
    """What may stand at a key of a config; its default is in configs/default.py."""

    kind: Any = str  # an annotation, as in `jaxcomp.core.specs`
    example: str = ""  # of a string that may not be empty
    resumed: str = ""  # why another value leaves a run the same; "": it does not
    same: bool = False  # the figures of the run are the same, too
    elastic: str = ""  # as `resumed`, where the number of workers may change
    inside: bool = False  # may change in the middle of a run, by `regime`
    before: Any = ""  # what runs did before there was this key
    of_task: bool = False  # it is read, and so checked, by tasks alone


_Natural = Annotated[int, Range(least=0)]
_FromZero = Annotated[float, Range(least=0)]
_BelowOne = Annotated[float, Range(least=0, below=1)]
_KEPT = "decides what is kept, not what is computed"
_WRITTEN = "decides what is written down, not what is computed"

KEYS = {
    "accumulate": Key(Count, elastic="fewer workers have larger shares of a batch"),
    "augment": Key(of_task=True),
    "batch_norm": Key(example="local"),
    "batch_per_worker": Key(_Natural),
    "batch_size": Key(_Natural, inside=True),  # 0: the key before says it
    "breakdown": Key(bool, resumed="decides what is measured after the run", same=True),
    "checkpoint_every": Key(resumed=_KEPT, same=True),
    "clip": Key(inside=True),
    "compressor": Key(example="top_k(keep=0.01)"),
    "compute_dtype": Key(
        Literal["bfloat16", "float16", "float32"], before="float32", of_task=True
    ),
    "dataset": Key(example="digits", of_task=True),
    "data_dir": Key(resumed="the same data may lie elsewhere", same=True, of_task=True),
    "decay": Key(example="kernels", inside=True, before="all"),
    "decay_at": Key(Literal["gradient", "update"], inside=True, before="update"),
    "dense_for": Key(),
    "deterministic": Key(bool),
    "devices_per_node": Key(Count, before=1),
    "elastic": Key(
        bool, resumed="allows that the number of workers changes, and computes nothing"
    ),
    "ema": Key(_BelowOne),
    "eval_batch_size": Key(
        _Natural,
        resumed="decides how the test set is cut, not what is computed of it",
        same=True,
    ),
    "eval_every": Key(example="1 epoch"),
    "eval_view": Key(of_task=True),
    "eval_workers_every": Key(),
    "exchange": Key(),
    "flush_every": Key(),
    "image_size": Key(_Natural, inside=True),
    "init_from": Key(),
    "keep_every": Key(resumed=_KEPT, same=True),
    "keep_last": Key(Count, resumed=_KEPT, same=True),
    "keep_warmup": Key(),
    "label_smoothing": Key(_BelowOne, of_task=True),
    "layers_every": Key(resumed=_WRITTEN, same=True),
    "learning_rate": Key(_FromZero, inside=True),
    "log_every": Key(Count, resumed=_WRITTEN, same=True),
    "loggers": Key(tuple | list, resumed=_WRITTEN, same=True),
    "loss_limit": Key(
        _FromZero,
        resumed="ends a run, and does not change what is computed before",
        same=True,
    ),
    "loss_scale": Key(),
    "lr_scaling": Key(example="none", inside=True),
    "mapper": Key(),
    "memory": Key(),
    "mixer": Key(),
    "model": Key(example="resnet8", of_task=True),
    "nonfinite": Key(
        Literal["skip", "stop"],
        resumed="a run that a bad step has stopped may go on without that step",
        same=True,
    ),
    "optimizer": Key(example="sgd(momentum=0.9)", inside=True),
    "overlap": Key(Count, before=1),
    "partition": Key(example="dealt", of_task=True),
    "platform": Key(
        resumed="refuses devices, and does not change what is computed on them",
        same=True,
    ),
    "policy": Key(tuple | list),
    "regime": Key(tuple | list | str),
    "schedule": Key(example="cosine", inside=True),
    "scope": Key(),
    "seed": Key(Annotated[int, Range(least=0, most=2**32 - 1)]),
    "task": Key(before="classification", of_task=True),
    "topology": Key(elastic="a graph has as many nodes as there are workers"),
    "train_for": Key(
        example="15 epochs",
        resumed="steps that are done stay; a schedule that knows the end, such as "
        "cosine, follows the new one from there",
    ),
    "warmup": Key(),
    "warmup_from": Key(Annotated[float, Range(least=0, most=1)]),
    "weight_decay": Key(_FromZero, inside=True),
    "workers": Key(  # 0: so many that no device is idle
        _Natural,
        elastic="what the old ones have is merged or divided, and nothing gets lost",
    ),
    "workers_per_device": Key(Count, resumed="decides where a worker is computed"),
}
# Two runs that differ in nothing else are one run, twice.
SAME = frozenset(name for name, key in KEYS.items() if key.same)


def changeable(*, elastic: bool = False) -> Mapping[str, str]:
    """The keys that may differ from those of the folder's run, with the reasons.

    Args:
      elastic: whether the number of workers may differ.

    Example:
      >>> "workers" in changeable(), "workers" in changeable(elastic=True)
      (False, True)
    """
    reasons = {
        name: key.resumed or (key.elastic if elastic else "")
        for name, key in KEYS.items()
    }
    return {name: reason for name, reason in reasons.items() if reason}


def check_keys(config: Any, *of_task: str, **filled: str) -> None:
    """Refuse a config that lacks a key, or has a value that cannot be right.

    Args:
      config: of a run.
      *of_task: keys that a task needs; none for those of every run.
      **filled: further ones, of strings that may not be empty, each with an example.

    Example:
      >>> check_keys({"label_smoothing": 2.0}, "label_smoothing")
      Traceback (most recent call last):
      jaxcomp.SpecError: label_smoothing is a number in [0, 1), not 2.0
    """
    of_run = [] if of_task or filled else [n for n, k in KEYS.items() if not k.of_task]
    names = (*of_run, *of_task, *filled)
    missing = sorted(name for name in names if name not in config)
    if missing:
        message = f"the config lacks {', '.join(missing)}: begin with one of configs/"
        raise UserError(f"{message}. {suggest(missing[0], config.keys())}")
    for name in names:
        check(KEYS[name].kind, name, config[name])
    for name in names:
        example = filled.get(name) or KEYS[name].example
        if example and not config[name].strip():
            raise UserError(f"{name} is empty: write for example {example!r}")
    if of_run:
        check_one_batch(config)


def check_one_batch(config: Any) -> None:
    """Refuse a config that says its batch in both ways, or in none.

    Example:
      >>> from ml_collections import ConfigDict
      >>> check_one_batch(ConfigDict({"batch_size": 64, "batch_per_worker": 16}))
      Traceback (most recent call last):
      jaxcomp.UserError: batch_size=64 is of all workers together, and ...
    """
    if not config.batch_per_worker:
        check(Count, "batch_size", config.batch_size)
    elif config.batch_size:
        raise UserError(
            f"batch_size={config.batch_size} is of all workers together, and "
            f"batch_per_worker={config.batch_per_worker} of each: give one of them, "
            "and set the other to 0"
        )


def check_fit(workers: int, batch: int, accumulate: int = 1) -> None:
    """Refuse a batch that the workers do not divide.

    Args:
      workers: of the run.
      batch: examples of a step, of all workers together.
      accumulate: parts in which a worker takes its share.

    Example:
      >>> check_fit(workers=4, batch=63)
      Traceback (most recent call last):
      jaxcomp.UserError: a batch of 63 does not divide over 4 workers: ...
    """
    parts = workers * accumulate
    if batch % parts:
        each = f" with accumulate={accumulate}" if accumulate > 1 else ""
        nearest = parts * max(1, round(batch / parts))
        raise UserError(
            f"a batch of {batch} does not divide over {workers} workers{each}: take a "
            f"multiple of {parts}, such as {nearest}"
        )


def whole_batches(examples: int, batch: int) -> int:
    """The number of whole batches in an epoch, at least one.

    Example:
      >>> whole_batches(100, 32)
      3
    """
    if batch > examples:
        raise UserError(f"a batch of {batch} is more than {examples} examples")
    return examples // batch
