"""The keys of a config: what they may be, and which may change on resume."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from jaxcomp.core.errors import UserError
from jaxcomp.core.specs import Count, Range, check
from jaxcomp.runs.folder import CHANGEABLE, SHARED, RunError, check_fit
from jaxcomp.training.schedules import FromZero
from jaxcomp.training.state import Decay


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


def batch_of(config: Any, workers: int) -> int:
    """Examples of a step, of all workers together.

    Example:
      >>> from ml_collections import ConfigDict
      >>> batch_of(ConfigDict({"batch_size": 0, "batch_per_worker": 16}), workers=4)
      64
    """
    return config.batch_per_worker * workers or config.batch_size


def check_batches(config: Any, workers: int) -> None:
    """Refuse batches of training or evaluation that the workers do not divide."""
    batch = batch_of(config, workers)
    check_fit(workers, batch, config.accumulate)
    try:
        check_fit(workers, config.eval_batch_size or batch)
    except RunError as error:
        raise RunError(f"eval_batch_size: {error}") from None


_CHANGEABLE = {
    **CHANGEABLE,
    "elastic": "allows that the number of workers changes, and computes nothing",
    "workers_per_device": "decides where a worker is computed",
    "train_for": "steps that are done stay; a schedule that knows the end, such as "
    "cosine, follows the new one from there",
}
# What else may differ where the number of workers may change.
_ELASTIC = {
    "workers": "what the old ones have is merged or divided, and nothing gets lost",
    "topology": "a graph has as many nodes as there are workers",
    "accumulate": "fewer workers have larger shares of a batch",
}


def changeable_keys(config: Any, *, elastic: bool = False) -> Mapping[str, str]:
    """The keys that may differ from those of the folder's run, with the reasons.

    Args:
      config: that asks to go on.
      elastic: whether the number of workers may differ, whatever the config says.
    """
    return _CHANGEABLE | (_ELASTIC if elastic or config.elastic else {})


# Strings that may not be empty, with examples.
FILLED = {
    "batch_norm": "local",
    "compressor": "top_k(keep=0.01)",
    "decay": "kernels",
    "eval_every": "1 epoch",
    "lr_scaling": "none",
    "optimizer": "sgd(momentum=0.9)",
    "schedule": "cosine",
    "train_for": "15 epochs",
}
# Strings that may be empty; whoever looks them up says what is wrong with them.
_STRINGS = (
    "checkpoint_every clip dense_for eval_workers_every exchange flush_every init_from "
    "keep_every keep_warmup layers_every loss_scale mapper matmul_precision memory "
    "mixer platform profile scope topology warmup"
)
KINDS = {
    **dict.fromkeys(_STRINGS.split(), str),
    **SHARED,
    "accumulate": Count,
    "breakdown": bool,
    "batch_per_worker": Annotated[int, Range(least=0)],
    "batch_size": Annotated[int, Range(least=0)],  # 0: the key before says it
    "decay_at": Literal["gradient", "update"],
    "deterministic": bool,
    "devices_per_node": Count,
    "elastic": bool,
    "ema": Annotated[float, Decay],
    "eval_batch_size": Annotated[int, Range(least=0)],
    "image_size": Annotated[int, Range(least=0)],
    "keep_last": Count,
    "learning_rate": FromZero,
    "log_every": Count,
    "loss_limit": FromZero,
    "loggers": tuple | list,
    "nonfinite": Literal["skip", "stop"],
    "overlap": Count,
    "policy": tuple | list,
    "regime": tuple | list | str,
    "warmup_from": Annotated[float, Range(least=0, most=1)],
    "weight_decay": FromZero,
    "workers": Annotated[int, Range(least=0)],  # 0: so many that no device is idle
    "workers_per_device": Count,
}
