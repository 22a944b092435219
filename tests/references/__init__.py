"""Slow and obvious versions in NumPy and plain Python, to compare with."""

from tests.references.low_rank import (
    as_matrix,
    atom_chances,
    draw_atoms,
    relative_atom_chances,
    truncated_svd,
)
from tests.references.packing import elias_fano, pack, pack_digits
from tests.references.quantisers import (
    Levels,
    block_scaled,
    cast,
    natural,
    nearest,
    qsgd,
    sign,
    terngrad,
)
from tests.references.rotations import eden, eden_blocks, reflections
from tests.references.sketches import sketch_estimates, sketch_tables
from tests.references.sparsifiers import (
    adaptive_threshold,
    block_top_k,
    dgc_top_k,
    random_subset,
    threshold,
    top_k,
)

__all__ = [
    "Levels",
    "adaptive_threshold",
    "as_matrix",
    "atom_chances",
    "block_scaled",
    "block_top_k",
    "cast",
    "dgc_top_k",
    "draw_atoms",
    "eden",
    "eden_blocks",
    "elias_fano",
    "natural",
    "nearest",
    "pack",
    "pack_digits",
    "qsgd",
    "random_subset",
    "reflections",
    "relative_atom_chances",
    "sign",
    "sketch_estimates",
    "sketch_tables",
    "terngrad",
    "threshold",
    "top_k",
    "truncated_svd",
]
