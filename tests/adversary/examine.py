"""The laws of a program, by its kind; and the smallest program that breaks one."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxcomp import make_compressor
from jaxcomp.core.trees import spec_of
from tests import laws as known
from tests.adversary.draw import Program, simpler
from tests.adversary.exchanging import check_exchange
from tests.adversary.mixing import check_mixer
from tests.adversary.training import check_optimizer
from tests.adversary.verdicts import Laws, Verdict, gradients, tried


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


CHECKS: dict[str, Callable[[Program, Laws], None]] = {
    "compressor": check_compressor,
    "exchange": check_exchange,
    "mixer": check_mixer,
    "optimizer": check_optimizer,
}
SECONDS = 60.0  # of looking for a smaller program


def examine(program: Program) -> Verdict:
    """Which laws a program breaks, if it is not refused."""

    return tried(lambda laws: CHECKS[program.kind](program, laws))


def smallest(program: Program, law: str) -> Program:
    """A program with less in it that breaks the law too."""
    until = time.monotonic() + SECONDS
    found = True
    while found:
        found = False
        for less in simpler(program):
            if time.monotonic() > until:
                return program
            if law in dict(examine(less).broken):
                program, found = less, True
                break
    return program
