"""The valid values of a training config's keys; a task checks its own keys."""

from typing import Annotated, Literal

from jaxcomp.runs.checks import SHARED
from jaxcomp.specs import Count, Range
from jaxcomp.training.ema import Decay
from jaxcomp.training.schedules import FromZero

__all__ = ["FILLED", "KINDS"]

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
