"""The laws of a compressor with random arguments, from `tests.laws`."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import make_compressor
from jaxcomp.core.trees import spec_of
from tests import laws as known
from tests.adversary.draw import Program
from tests.adversary.given import gradients
from tests.adversary.verdicts import Laws

__all__ = ["check_compressor"]


def check_compressor(program: Program, laws: Laws) -> None:
    """Of one or two tensors, each by itself."""
    compressor, key = make_compressor(program.compressor), jax.random.key(0)
    others = "overflow='nan'" in program.compressor or "cast" in program.compressor

    def check(law: Any, *args: Any, **more: Any) -> None:
        name = law.__name__.removeprefix("check_").replace("_", " ")
        try:
            law(compressor, *args, **more)
            laws.check(name, True)
        except AssertionError as error:
            found = " ".join(str(error).split())[:200]
            laws.check(name, False, f"{x.shape} {x.dtype}: {found}")

    for xs in jax.tree.leaves(gradients(program, 2, 2, program.seed))[:2]:
        x = xs[0, 0]
        if not x.size or jnp.iscomplexobj(x):
            continue
        for law in (known.check_round_trip, known.check_bits, known.check_fuses):
            check(law, x, key)
        check(known.check_zero, x, key)
        if others:  # infinities are on purpose
            continue
        check(known.check_finite, x, key)
        check(known.check_sum, xs[0], jax.random.split(key, 2))
        check(known.check_long_vectors_hide_nothing, x.reshape(-1))
        if compressor.aligned:
            check(known.check_aligned, x, xs[1, 0], key)
        if not jnp.any(x) or x.dtype != jnp.float32:
            continue
        if compressor.unbiased:
            check(known.check_unbiased, x, draws=2 * known.CHUNK, z=8.0)
        if compressor.contraction(spec_of(x)) is not None:
            check(known.check_contraction, x, draws=known.CHUNK, z=7.0)
