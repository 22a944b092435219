"""Scopes decide which tensors of a tree are compressed together as one vector.

A scope makes a plan from a compressor. The plan divides the tensors of a tree into
groups and gives each group a compressor. A single tensor keeps its shape; the tensors
of a larger group are joined into one vector. `lift` turns a plan into a `Compressor` of
trees, with the same facts and laws.
"""

from jaxcomp.scope.plans import (
    REGISTRY,
    Group,
    GroupedPayload,
    Leaf,
    Plan,
    bucketed,
    leaves_of,
    lift,
    make_plan,
    only_large,
    per_leaf,
    policy,
    which_fit,
    whole_tree,
)

__all__ = [
    "REGISTRY",
    "Group",
    "GroupedPayload",
    "Leaf",
    "Plan",
    "bucketed",
    "leaves_of",
    "lift",
    "make_plan",
    "only_large",
    "per_leaf",
    "policy",
    "which_fit",
    "whole_tree",
]
