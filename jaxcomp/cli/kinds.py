"""The kinds of things that configs name, and where their registries are."""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

__all__ = ["KINDS", "Kind", "about", "registry_of"]


class Kind(NamedTuple):
    """A registry, found without importing it."""

    key: str  # of a config; "" where no key names a member
    module: str
    what: str  # it decides
    registry: str = "REGISTRY"


KINDS = {
    "augmentations": Kind(
        "augment", "jaxcomp.data", "random changes of images", "AUGMENTATIONS"
    ),
    "compressors": Kind("compressor", "jaxcomp.compressors", "what is lost"),
    "datasets": Kind("dataset", "jaxcomp.data", "examples to learn from"),
    "eval_views": Kind("eval_view", "jaxcomp.data", "what a test sees", "VIEWS"),
    "exchanges": Kind("exchange", "jaxcomp.exchanges", "how gradients become one mean"),
    "loggers": Kind("", "jaxcomp.loggers", "where figures go"),
    "memories": Kind("memory", "jaxcomp.memory", "what happens to what is not sent"),
    "mixers": Kind("mixer", "jaxcomp.make", "how workers' own models mix", "MIXERS"),
    "language_models": Kind("model", "jaxcomp.models", "of texts", "LANGUAGE"),
    "models": Kind("model", "jaxcomp.models", "what is trained"),
    "optimizers": Kind("optimizer", "jaxcomp.training.optimizers", "how it learns"),
    "partitions": Kind(
        "partition", "jaxcomp.data", "who sees which examples", "PARTITIONS"
    ),
    "problems": Kind("", "jaxcomp.problems", "logistic regressions"),
    "schedules": Kind("schedule", "jaxcomp.training.schedules", "rates over a run"),
    "scopes": Kind("scope", "jaxcomp.scope", "what is compressed as one vector"),
    "tasks": Kind("task", "jaxcomp.tasks", "data, model and loss"),
    "texts": Kind("dataset", "jaxcomp.data.texts", "texts to learn from"),
    "topologies": Kind("topology", "jaxcomp.gossip.topology", "graphs of gossip"),
}


def registry_of(kind: str) -> Mapping[str, Callable[..., Any]]:
    """The registry of a kind in `KINDS`."""
    found = KINDS[kind]
    return getattr(importlib.import_module(found.module), found.registry)


def about(factory: Callable[..., Any]) -> str:
    """The first line of a factory's docstring; of a data set, what it holds.

    Example:
      >>> from jaxcomp.compressors import top_k
      >>> about(top_k)
      'Keep the k = round(keep * n) elements of largest magnitude, at least one.'
    """
    if isinstance(factory, functools.partial):  # a data set of an archive
        return factory.args[0].about
    text = inspect.getdoc(factory) or ""
    return " ".join(text.partition("\n\n")[0].split())
