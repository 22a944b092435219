"""Signs in five planes of a row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.coding.packing import PLANES, pack_planes, unpack_planes


def test_every_byte_of_symbols_comes_back() -> None:
    every = np.stack(np.unravel_index(np.arange(3**PLANES), (3,) * PLANES))
    symbols = jnp.asarray(every.reshape(-1), jnp.uint8)
    packed = pack_planes(symbols)
    assert packed.size == 3**PLANES  # 1.6 bits for each
    assert len(np.unique(packed)) == 3**PLANES
    assert jnp.array_equal(unpack_planes(packed), symbols)


@pytest.mark.parametrize("shape", [(5,), (3, 35), (2, 2, 10), (0, 5), (4, 0)])
def test_rows_are_packed_by_themselves(shape: tuple[int, ...]) -> None:
    key = jax.random.key(0)
    symbols = jax.random.randint(key, shape, 0, 3).astype(jnp.uint8)
    packed = pack_planes(symbols)
    assert packed.shape == (*shape[:-1], shape[-1] // PLANES)
    assert jnp.array_equal(unpack_planes(packed), symbols)
    if len(shape) > 1 and shape[0]:
        assert jnp.array_equal(packed[-1], pack_planes(symbols[-1]))
