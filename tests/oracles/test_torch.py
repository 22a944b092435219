"""PyTorch: top-k, truncated SVD, and the peers that the benchmark races."""

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.vectors import draw
from jaxcomp import make_compressor, nbits
from tests import laws


def through(method: str, x: np.ndarray) -> tuple[np.ndarray, int]:
    """C(x) for one key, and the bits sent."""
    compressor = make_compressor(method)
    state = compressor.init(jnp.asarray(x))
    payload, _ = compressor.compress(jnp.asarray(x), state, jax.random.key(0))
    return np.asarray(compressor.decompress(payload, x)), nbits(payload)


@pytest.mark.parametrize("source", ["gaussian", "heavy"])
@pytest.mark.parametrize("keep", [0.001, 0.01, 0.3])
def test_top_k_is_torchs(torch: Any, source: str, keep: float) -> None:
    """The same elements, exactly: these vectors have no equal magnitudes at the cut."""
    x = draw(source, (100_003,))
    y, _ = through(f"top_k(keep={keep})", x)
    theirs = torch.from_numpy(x)
    places = torch.topk(theirs.abs(), round(keep * x.size)).indices
    expected = torch.zeros_like(theirs).scatter_(0, places, theirs[places])
    np.testing.assert_array_equal(y, expected.numpy())


@pytest.mark.parametrize("shape", [(60, 40), (30, 50), (512, 600)], ids=str)
@pytest.mark.parametrize("rank", [1, 4])
def test_svd_is_torchs_truncation(
    torch: Any, shape: tuple[int, ...], rank: int
) -> None:
    """The same matrix where the spectrum has a gap, else one that errs as little."""
    x = draw("gaussian", shape)
    u, s, v = torch.linalg.svd(torch.from_numpy(x), full_matrices=False)
    fallen = s * 0.5 ** torch.arange(len(s))
    x = ((u * fallen) @ v).numpy()
    y, _ = through(f"svd(rank={rank})", x)
    expected = ((u[:, :rank] * fallen[:rank]) @ v[:rank]).numpy()
    np.testing.assert_allclose(y, expected, atol=2e-5 * float(fallen[0]))


@pytest.mark.parametrize("shape", [(60, 40), (1000, 900)], ids=str)
def test_svd_errs_as_little_as_torchs(torch: Any, shape: tuple[int, ...]) -> None:
    """On Gaussian matrices, whose singular values lie close together: to 0.1 %."""
    x = draw("gaussian", shape)
    lengths = torch.linalg.svdvals(torch.from_numpy(x).double())
    y, _ = through("svd(rank=4)", x)
    error = np.square(y - x, dtype=np.float64).sum()
    assert error == pytest.approx(float((lengths[4:] ** 2).sum()), rel=1e-3)
    # The part that is kept is a thousandth of the whole, so look at it by itself.
    kept = np.square(y, dtype=np.float64).sum()
    assert kept == pytest.approx(float((lengths[:4] ** 2).sum()), rel=2e-3)


# Draws of the sparse ones differ much between keys: few elements are sent.
PEERS = [
    ("adaptive_threshold", 1e-6),
    ("block_scaled", 1e-5),
    ("block_scaled(bits=4, block=16)", 1e-5),
    ("block_top_k", 1e-6),
    ("block_top_k(per_block=3)", 1e-6),
    ("cast", 1e-5),
    ("cast(dtype='float8_e4m3fn')", 1e-5),
    ("count_sketch", 0.02),
    ("count_sketch(ratio=0.3, rows=3)", 0.04),
    ("dgc_top_k(keep=0.01)", 0.1),
    ("natural", 0.02),
    ("qsgd(levels=127)", 0.02),
    ("qsgd(levels=7, bucket=None)", 0.15),
    ("qsgd(levels=7, bucket=100)", 0.02),
    ("qsgd_sparse", 0.3),
    ("random_k", 0.01),
    ("rotating_slice", 1e-6),
    ("sign", 1e-5),
    ("terngrad", 0.05),
    ("threshold(v=1.5, cap=0.5)", 1e-6),
    ("top_k", 1e-6),
]


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize(("method", "tolerance"), PEERS)
def test_the_benchmarks_peers_do_the_same(
    torch: Any, method: str, tolerance: float, tuned: bool
) -> None:
    """Same error as the method they stand for; an odd size shows wrong padding."""
    peers = importlib.import_module("benchmarks.peers_torch")
    x = draw("gaussian", (40_001,))
    peer = peers.make(method, x.shape, tuned)
    if peer is None:
        pytest.skip("no tuned version")
    payload = peer.compress(torch.from_numpy(x))
    theirs = peer.decompress(payload).numpy()
    ours, bits = through(method, x)
    assert theirs.shape == x.shape
    error = np.square(theirs - x, dtype=np.float64).sum()
    assert error == pytest.approx(
        np.square(ours - x, dtype=np.float64).sum(), rel=tolerance
    )
    if tolerance <= 1e-5:
        np.testing.assert_allclose(theirs, ours, rtol=1e-5)
    # Packed for real: the peer does not send whole floats where we send bits.
    assert peers.nbits(payload) <= 2.5 * bits


@pytest.mark.parametrize("method", ["svd(rank=3)", "atomo(rank=3)", "qsvd(rank=3)"])
def test_the_low_rank_peers_do_the_same(torch: Any, method: str) -> None:
    peers = importlib.import_module("benchmarks.peers_torch")
    u, v = draw("gaussian", (80, 5)), draw("heavy", (5, 60))
    x = (u @ v).astype(np.float32)
    peer = peers.make(method, x.shape)
    tensor = torch.from_numpy(x.reshape(-1))
    outputs = [peer.decompress(peer.compress(tensor)).numpy() for _ in range(300)]
    compressor = make_compressor(method)
    keys = jax.random.split(jax.random.key(0), 300)
    own = np.asarray(laws.outputs(compressor, x, keys)).reshape(-1, *x.shape)
    theirs = np.square(np.stack(outputs) - x, dtype=np.float64).sum(axis=(1, 2)).mean()
    ours = np.square(own - x, dtype=np.float64).sum(axis=(1, 2)).mean()
    # Independent choices of triples vary more than systematic ones.
    assert ours == pytest.approx(theirs, rel=0.25)
