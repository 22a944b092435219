"""Many runs of one config: a grid of settings, each trained once, through any kill.

    jaxcomp sweep configs/sweeps/digits.py

`settings` and `search` are what a file of a sweep says, and `reading` reads one. `plan`
makes runs of it, `runner` runs them in `processes` of their own and keeps a `record`,
and `summary` writes what came out.
"""

from jaxcomp.cli.sweeps.reading import (
    Search,
    Setting,
    Sweep,
    product,
    read_sweep,
    search,
)

__all__ = ["Search", "Setting", "Sweep", "product", "read_sweep", "search"]
