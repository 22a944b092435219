"""The key clip: each form against NumPy, and where it is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcomp.core.errors import UserError
from jaxcomp.training import optimizers
from jaxcomp.training.optimizers import make_clip
from tests.training.small import built, small_config

WORKERS = 4
RNG = np.random.default_rng(0)
TREE = {"a": RNG.normal(size=(WORKERS, 3, 2)), "b": 5 * RNG.normal(size=(WORKERS, 4))}


def clipped(spec: str) -> Any:
    [link] = make_clip(spec, "workers")
    tree = jax.tree.map(jnp.float32, TREE)
    update = jax.vmap(lambda x: link.update(x, link.init(x))[0], axis_name="workers")
    return jax.jit(update)(tree)


def norms(x: np.ndarray) -> np.ndarray:
    """Of each worker."""
    return np.linalg.norm(x.reshape(WORKERS, -1), axis=1)


def scaled(factors: dict[str, Any]) -> dict[str, np.ndarray]:
    """Each worker's tensors times factors of at most 1."""
    return {
        k: np.minimum(1, factors[k]).reshape(-1, *[1] * (x.ndim - 1)) * x
        for k, x in TREE.items()
    }


def expected(spec: str) -> Any:
    of = {k: norms(x) for k, x in TREE.items()}
    whole = np.sqrt(sum(n**2 for n in of.values()))
    rms = {k: np.sqrt(np.mean(n**2)) for k, n in of.items()}
    alike = np.ones(WORKERS)
    joint = np.sqrt(np.mean(whole**2))
    return {
        "local(limit=7)": scaled(dict.fromkeys(TREE, 7 / whole)),
        "scaled(limit=7)": scaled(dict.fromkeys(TREE, 3.5 / whole)),
        "tensor(limit=3)": scaled({k: 3 / n for k, n in of.items()}),
        "value(limit=2)": {k: np.clip(x, -2, 2) for k, x in TREE.items()},
        "workers(limit=7)": scaled(dict.fromkeys(TREE, alike * 7 / joint)),
        "workers(limit=3, each=True)": scaled({k: alike * 3 / rms[k] for k in TREE}),
        "workers_value": {k: np.clip(x, -rms[k], rms[k]) for k, x in TREE.items()},
    }[spec]


@pytest.mark.parametrize(
    "spec",
    [
        "local(limit=7)",
        "scaled(limit=7)",
        "tensor(limit=3)",
        "value(limit=2)",
        "workers(limit=7)",
        "workers(limit=3, each=True)",
        "workers_value",
    ],
)
def test_each_form(spec):
    found = clipped(spec)
    for name, tree in expected(spec).items():
        np.testing.assert_allclose(found[name], tree, rtol=1e-5)
    assert any(not np.allclose(found[name], TREE[name]) for name in TREE)


def test_every_form_is_tested_and_none_hides_a_nan():
    for name in optimizers.CLIPS:
        spec = name if name == "workers_value" else f"{name}(limit=1)"
        [link] = make_clip(spec, "workers")
        tree = jnp.array([[1.0, 2.0], [jnp.nan, jnp.nan]])
        found: Any = jax.vmap(
            lambda x, link=link: link.update(x, ())[0], axis_name="workers"
        )(tree)
        assert np.isnan(found[1]).all(), spec


def test_nothing_is_clipped_without_one():
    assert make_clip("", "workers") == []


@pytest.mark.parametrize("spec", ["scaled(limit=1)", "workers(limit=1)"])
def test_what_needs_a_mean_is_refused_with_models_of_the_workers_own(spec):
    mixed = {"mixer": "d_psgd", "topology": "ring", "exchange": "", "memory": ""}
    mixed |= {"compressor": "none"}
    with pytest.raises(UserError, match="with 'd_psgd' take 'local'"):
        built(small_config(mapper="vmap", clip=spec, **mixed))
    assert built(small_config(mapper="vmap", clip="local(limit=1)", **mixed))


def test_a_second_clip_in_the_memory_is_refused():
    momentum = {"mapper": "vmap", "optimizer": "sgd(momentum=0)"}
    with pytest.raises(UserError, match="both clip the gradient"):
        built(small_config(clip="value(limit=1)", memory="dgc(clip=2)", **momentum))
    assert built(small_config(clip="value(limit=1)", memory="dgc", **momentum))
