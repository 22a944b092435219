"""The keys of a training config that may differ when a run goes on."""

from collections.abc import Mapping
from typing import Any

from jaxcomp.runs.folder import CHANGEABLE

__all__ = ["changeable_keys"]

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
