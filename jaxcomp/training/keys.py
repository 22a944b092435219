"""The valid values of a training config's keys; a task checks its own keys."""

from typing import Annotated, Literal

from jaxcomp.runs.checks import SHARED
from jaxcomp.specs import Count, Range
from jaxcomp.training.schedules import FromZero

__all__ = ["FILLED", "KINDS"]

# Strings that may not be empty, with examples.
FILLED = {
    "compressor": "top_k(keep=0.01)",
    "eval_every": "1 epoch",
    "optimizer": "sgd(momentum=0.9)",
    "schedule": "cosine",
    "train_for": "15 epochs",
}
# Strings that may be empty; whoever looks them up says what is wrong with them.
_STRINGS = (
    "checkpoint_every dense_for eval_workers_every exchange flush_every keep_every "
    "keep_warmup layers_every lr_scaling mapper matmul_precision memory mixer platform "
    "profile scope topology warmup"
)
KINDS = {
    **dict.fromkeys(_STRINGS.split(), str),
    **SHARED,
    "accumulate": Count,
    "breakdown": bool,
    "batch_norm": Literal["local", "sync"],
    "clip_norm": FromZero,
    "deterministic": bool,
    "devices_per_node": Count,
    "elastic": bool,
    "eval_batch_size": Annotated[int, Range(least=0)],
    "learning_rate": FromZero,
    "log_every": Count,
    "loggers": tuple | list,
    "nonfinite": Literal["skip", "stop"],
    "overlap": Count,
    "policy": tuple | list,
    "weight_decay": FromZero,
    "workers": Annotated[int, Range(least=0)],  # 0: so many that no device is idle
    "workers_per_device": Count,
}
