"""A run has one momentum: that of the memory, or that of the optimiser."""

from typing import Any

from jaxcomp import memory
from jaxcomp.specs import Call, argument, error_at, parse

__all__ = ["check_one_momentum", "of_memory"]

# The arguments by which memories and optimisers give a momentum to the gradient.
OF_OPTIMIZERS = {
    **dict.fromkeys(("adam", "adamw", "lamb"), "b1"),
    **dict.fromkeys(("lars", "sgd"), "momentum"),
}
# Optimisers that go on with the momentum of a memory, and what has to be the same.
CONTINUED = {
    "dgc_sgd": ("dgc", ("momentum", "nesterov")),
    "one_bit_adam": ("shared_momentum", ()),
}
EXAMPLES = {
    "dgc": "dgc(momentum=0.9)",
    "shared_momentum": "shared_momentum(beta=0.9) | error_feedback",
}


def check_one_momentum(given: Call | None, optimizer: Call, factory: Any) -> None:
    """Refuse a second momentum, and an optimiser whose memory gives none.

    Args:
      given: the memory that gives a momentum, from `of_memory`.
      optimizer: of the config.
      factory: of the optimiser.

    Raises:
      SpecError: names both settings, and what would go together.
    """
    own = OF_OPTIMIZERS.get(optimizer.name)
    if own and given and argument(optimizer, factory, own, given=1):
        message = (
            f"two momenta, one after the other: memory {str(given)!r} gives one and "
            f"optimizer {str(optimizer)!r} another. Set optimizer to "
            f"'{optimizer.name}({own}=0)', or memory to one without"
        )
        raise error_at(optimizer, message)
    if optimizer.name not in CONTINUED:
        return
    name, alike = CONTINUED[optimizer.name]
    if given is None or given.name != name:
        found = "gives none" if given is None else f"is {str(given)!r}"
        message = (
            f"optimizer {str(optimizer)!r} goes on with the momentum of memory "
            f"{name!r}, and the memory {found}. Set memory to {EXAMPLES[name]!r}, or "
            "optimizer to 'sgd(momentum=0.9)' if the memory gives none"
        )
        raise error_at(optimizer, message)
    for key in alike:
        here = argument(optimizer, factory, key, given=1)
        there = argument(given, memory.REGISTRY[name], key, given=1)
        if here != there:
            message = (
                f"memory {str(given)!r} and optimizer {str(optimizer)!r} have one "
                f"momentum together, and {key} is {there!r} and {here!r}: set it alike"
            )
            raise error_at(optimizer, message)


def of_memory(momentum: str | None) -> Call | None:
    """The memory that an exchange names as the one that gives a momentum.

    Example:
      >>> of_memory("dgc(momentum=0.5)").kwargs
      {'momentum': 0.5}
    """
    call = parse(momentum) if momentum else None
    assert call is None or isinstance(call, Call)
    return call
