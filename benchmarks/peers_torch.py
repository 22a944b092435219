"""The same methods in PyTorch, eager, on plain tensors: what the benchmark races.

A peer has the name and the arguments of the compressor it stands for, so one spec
string builds both. Each sends what the compressor sends, packed for real, and returns
the dense vector. `REGISTRY` has the direct, vectorised version that follows the
formula; `TUNED` has, where more is to be gained, the fastest version we could find:
in place, packed by planes, decoded by table. Needs torch (`make oracles` installs it).
"""

import importlib
import inspect
import math
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxcomp.core.specs import Call, Pipe, build, parse

torch: Any = importlib.import_module("torch")  # not a dependency: nothing to check


class Peer(NamedTuple):
    """A method on a tensor of one shape. Payloads are tuples of tensors."""

    compress: Callable[[Any], Any]  # x -> payload
    decompress: Callable[[Any], Any]  # payload -> x_hat, flat or of x's shape


Factory = Callable[..., Peer]  # (shape, method's arguments) -> Peer


def make(spec: str, shape: tuple[int, ...], tuned: bool = False) -> Peer | None:
    """The peer of a compressor for one shape, or None if there is none.

    Args:
      spec: of the compressor, such as "top_k(keep=0.01)".
      shape: of the tensors that will be compressed.
      tuned: whether the tuned version is meant.

    Returns:
      The peer, or None also where it lacks an option that the spec names.

    Raises:
      ModuleNotFoundError: the peer is another package, which is not installed.
    """
    registry = TUNED if tuned else REGISTRY
    call = parse(spec)
    if isinstance(call, Pipe) or call.name not in registry:
        return None
    known = inspect.signature(registry[call.name]).parameters
    if not set(call.kwargs) <= set(known):
        return None
    return build(Call(*call), registry, "peer", shape)


def to_torch(array: Any) -> Any:
    """A tensor with a copy of the array's elements."""
    return torch.from_numpy(np.array(array))


def nbits(payload: Any) -> int:
    """Bits of all tensors of a payload."""
    if isinstance(payload, tuple | list):
        return sum(nbits(part) for part in payload)
    if isinstance(payload, dict):
        return sum(nbits(part) for part in payload.values())
    if isinstance(payload, torch.Tensor):
        return payload.numel() * payload.element_size() * 8
    return 0  # a number known to both sides


# --- Sparsifiers ----------------------------------------------------------------------


def _sparse(shape: tuple[int, ...], choose: Callable[[Any], Any]) -> Peer:
    """Values and 32-bit indices of the places that `choose` returns."""
    size = math.prod(shape)

    def compress(x: Any) -> Any:
        places = choose(x)
        return x[places], places.to(torch.int32)

    def decompress(payload: Any) -> Any:
        values, places = payload
        return torch.zeros(size).scatter_(0, places.to(torch.int64), values)

    return Peer(compress, decompress)


def _top_k(shape: tuple[int, ...], keep: float = 0.01) -> Peer:
    k = max(1, round(keep * math.prod(shape)))
    return _sparse(shape, lambda x: torch.topk(x.abs(), k, sorted=False).indices)


def _dgc_top_k(shape: tuple[int, ...], keep: float = 0.001) -> Peer:
    """The published procedure: strided sample, adapted threshold, resampling."""
    size, sample = math.prod(shape), 0.01
    k = math.ceil(size * keep)
    want = max(math.ceil(size * sample), math.ceil(2 / keep))
    stride = 1
    if size > math.ceil(2 / keep):
        stride = math.ceil(size / want / 32) * 32 + 1
        while size // stride < want:
            stride -= 8
    top = math.ceil(size // stride * keep)

    def choose(x: Any) -> Any:
        magnitudes = x.abs()
        sampled = magnitudes[random.randrange(stride) :: stride]
        threshold = torch.topk(sampled, top, sorted=False).values.min()
        places = (magnitudes >= threshold).nonzero().view(-1)
        for _ in range(10 if stride > 1 else 0):
            if places.numel() > 1.3 * k:
                best = torch.topk(magnitudes[places], k, sorted=False).indices
                return places[best]
            if places.numel() >= 0.8 * k:
                break
            threshold = threshold * 0.8
            places = (magnitudes >= threshold).nonzero().view(-1)
        return places[:k]

    return _sparse(shape, choose)


def _block_top_k(
    shape: tuple[int, ...], keep: float = 0.01, per_block: int = 1
) -> Peer:
    size = math.prod(shape)
    blocks = -(-size // max(per_block, round(per_block / keep)))
    height = -(-size // blocks)
    narrow = torch.uint8 if height <= 256 else torch.int32

    def compress(x: Any) -> Any:
        columns = _padded(x, blocks).view(-1, blocks)
        if per_block == 1:
            rows = columns.abs().argmax(0, keepdim=True)
        else:
            rows = columns.abs().topk(per_block, dim=0, sorted=False).indices
        return columns.gather(0, rows), rows.to(narrow)

    def decompress(payload: Any) -> Any:
        values, rows = payload
        out = torch.zeros(height, blocks).scatter_(0, rows.to(torch.int64), values)
        return out.view(-1)[:size]

    return Peer(compress, decompress)


def _threshold(shape: tuple[int, ...], v: float = 0.001, cap: float = 0.05) -> Peer:
    most = max(1, round(cap * math.prod(shape)))
    return _sparse(shape, lambda x: _passing(x.abs(), v, most))


def _adaptive_threshold(shape: tuple[int, ...], cap: float = 0.05) -> Peer:
    most = max(1, round(cap * math.prod(shape)))

    def choose(x: Any) -> Any:
        magnitudes = x.abs()
        return _passing(magnitudes, 0.5 * magnitudes.max(), most)

    return _sparse(shape, choose)


def _passing(magnitudes: Any, threshold: Any, most: int) -> Any:
    """Places of all that pass; of too many the largest."""
    places = (magnitudes >= threshold).nonzero().view(-1)
    if places.numel() > most:
        best = torch.topk(magnitudes[places], most, sorted=False).indices
        places = places[best]
    return places


def _rotating_slice(shape: tuple[int, ...], keep: float = 0.01) -> Peer:
    size = math.prod(shape)
    k = max(1, round(keep * size))

    def compress(x: Any) -> Any:
        return x[:k].clone(), torch.tensor(0)

    def decompress(payload: Any) -> Any:
        values, offset = payload
        out = torch.zeros(size)
        out[int(offset) : int(offset) + k] = values
        return out

    return Peer(compress, decompress)


def _qsgd_sparse(shape: tuple[int, ...]) -> Peer:
    size = math.prod(shape)

    def compress(x: Any) -> Any:
        norm = x.norm()
        places = (torch.rand_like(x) * norm < x.abs()).nonzero().view(-1)
        return norm, torch.signbit(x[places]), places.to(torch.int32)

    def decompress(payload: Any) -> Any:
        norm, negative, places = payload
        values = torch.where(negative, -norm, norm)
        return torch.zeros(size).scatter_(0, places.to(torch.int64), values)

    return Peer(compress, decompress)


def _random_k(
    shape: tuple[int, ...], keep: float = 0.01, unbiased: bool = False
) -> Peer:
    """One place in each of k strata, drawn again from the seed that is sent."""
    size = math.prod(shape)
    k = max(1, round(keep * size))
    scale = size / k if unbiased else 1.0

    def places(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        # Strata instead of a permutation, which would cost a pass over all places.
        starts = torch.arange(k, dtype=torch.float64) * (size / k)
        within = torch.rand(k, dtype=torch.float64, generator=generator) * (size / k)
        return starts.add_(within).to(torch.int64)

    def compress(x: Any) -> Any:
        seed = random.getrandbits(62)
        return x[places(seed)] * scale, torch.tensor(seed)

    def decompress(payload: Any) -> Any:
        values, seed = payload
        return torch.zeros(size).scatter_(0, places(int(seed)), values)

    return Peer(compress, decompress)


# --- Quantisers -----------------------------------------------------------------------


def _sign(shape: tuple[int, ...]) -> Peer:
    size = math.prod(shape)
    shifts = torch.arange(8, dtype=torch.uint8)
    weights = (1 << torch.arange(8)).to(torch.uint8)

    def compress(x: Any) -> Any:
        octets = _padded(x < 0, 8).view(-1, 8).view(torch.uint8)
        return x.abs().mean(), (octets * weights).sum(1, dtype=torch.uint8)

    def decompress(payload: Any) -> Any:
        scale, words = payload
        negative = (words[:, None] >> shifts) & 1
        return torch.where(negative.bool(), -scale, scale).view(-1)[:size]

    return Peer(compress, decompress)


def _tuned_sign(shape: tuple[int, ...]) -> Peer:
    size = math.prod(shape)
    shifts = torch.arange(8)
    table = 1.0 - 2.0 * ((torch.arange(256)[:, None] >> shifts) & 1)

    def compress(x: Any) -> Any:
        # Eight equal bytes in one 64-bit word: the product gathers them in the top one.
        octets = _padded(x < 0, 8).view(torch.int64)
        words = octets.mul(_GATHER_BITS).bitwise_right_shift_(56).to(torch.uint8)
        return torch.linalg.vector_norm(x, 1) / size, words

    def decompress(payload: Any) -> Any:
        scale, words = payload
        rows = torch.nn.functional.embedding(words.to(torch.int32), table * scale)
        return rows.view(-1)[:size]

    return Peer(compress, decompress)


def _qsgd(shape: tuple[int, ...], levels: int = 127, bucket: int | None = 512) -> Peer:
    size = math.prod(shape)
    width = bucket or size

    def compress(x: Any) -> Any:
        buckets = _padded(x, width).view(-1, width)
        norms = buckets.norm(dim=1, keepdim=True)
        scaled = buckets.abs() * (levels / norms.clamp_min(_TINY))
        level = torch.floor(scaled + torch.rand_like(scaled)).clamp_(max=levels)
        return _stored(torch.sign(buckets) * level, levels), norms / levels

    def decompress(payload: Any) -> Any:
        stored, units = payload
        level = _restored(stored, levels)[: units.numel() * width].view(-1, width)
        return (level * units).view(-1)[:size]

    return Peer(compress, decompress)


def _tuned_qsgd(
    shape: tuple[int, ...], levels: int = 127, bucket: int | None = 512
) -> Peer:
    size = math.prod(shape)
    width = bucket or size

    def compress(x: Any) -> Any:
        buckets = _padded(x, width).view(-1, width)
        units = torch.linalg.vector_norm(buckets, dim=1, keepdim=True) / levels
        # floor(x / unit + u) rounds negative numbers as well: no sign, no magnitude.
        level = torch.rand_like(buckets).addcdiv_(buckets, units.clamp_min(_TINY))
        return _stored(level.floor_().clamp_(-levels, levels), levels), units

    def decompress(payload: Any) -> Any:
        stored, units = payload
        level = _restored(stored, levels)[: units.numel() * width].view(-1, width)
        return level.mul_(units).view(-1)[:size]

    return Peer(compress, decompress)


def _stored(level: Any, levels: int) -> Any:
    """Signed levels as two in a byte, bytes, or 16-bit integers."""
    if levels > 127:
        return level.to(torch.int16)
    if levels > 7:
        return level.to(torch.int8)
    symbols = _padded((level + 8).to(torch.uint8), 2).view(2, -1)
    return symbols[0] | (symbols[1] << 4)


def _restored(stored: Any, levels: int) -> Any:
    """The inverse of `_stored`, as fresh float32."""
    if levels > 7:
        return stored.to(torch.float32)
    symbols = torch.stack((stored & 15, stored >> 4)).view(-1)
    return symbols.to(torch.float32).sub_(8)


def _terngrad(shape: tuple[int, ...]) -> Peer:
    size = math.prod(shape)
    shifts = torch.arange(0, 8, 2, dtype=torch.uint8)

    def compress(x: Any) -> Any:
        magnitudes = x.abs()
        largest = magnitudes.max()
        kept = torch.rand_like(x) * largest < magnitudes
        symbols = (torch.sign(x).to(torch.int8) * kept + 1).to(torch.uint8)
        symbols = _padded(symbols, 4).view(-1, 4)
        return largest, (symbols << shifts).sum(1, dtype=torch.uint8)

    def decompress(payload: Any) -> Any:
        largest, words = payload
        symbols = ((words[:, None] >> shifts) & 3).to(torch.float32) - 1
        return (symbols * largest).view(-1)[:size]

    return Peer(compress, decompress)


def _tuned_terngrad(shape: tuple[int, ...]) -> Peer:
    size = math.prod(shape)
    fields = (torch.arange(256)[:, None] >> torch.arange(0, 8, 2)) & 3
    table = fields.to(torch.float32) - 1

    def compress(x: Any) -> Any:
        largest = torch.linalg.vector_norm(x, torch.inf)
        # x / max + u lies in [-1, 2): one more, and the cast's truncation is a floor.
        level = torch.rand_like(x).addcdiv_(x, largest.clamp_min(_TINY)).add_(1)
        # Four bytes in one 32-bit word; the product gathers them in the top one.
        symbols = _padded(level.to(torch.uint8), 4).view(torch.int32)
        words = symbols.mul(_GATHER_PAIRS).bitwise_right_shift_(24).to(torch.uint8)
        return largest, words

    def decompress(payload: Any) -> Any:
        largest, words = payload
        rows = torch.nn.functional.embedding(words.to(torch.int32), table * largest)
        return rows.view(-1)[:size]

    return Peer(compress, decompress)


def _natural(shape: tuple[int, ...]) -> Peer:
    """Random bits added to the mantissa carry into the exponent."""
    size = math.prod(shape)
    shifts = torch.arange(8, dtype=torch.uint8)
    weights = (1 << torch.arange(8)).to(torch.uint8)

    def compress(x: Any) -> Any:
        magnitudes = x.view(torch.int32) & 0x7FFFFFFF
        draws = torch.randint(1 << 23, (size,), dtype=torch.int32)
        exponents = ((magnitudes + draws) >> 23).to(torch.uint8)
        octets = _padded(x < 0, 8).view(-1, 8).view(torch.uint8)
        return exponents, (octets * weights).sum(1, dtype=torch.uint8)

    def decompress(payload: Any) -> Any:
        exponents, words = payload
        powers = (exponents.to(torch.int32) << 23).view(torch.float32)
        negative = (((words[:, None] >> shifts) & 1) == 1).view(-1)[:size]
        return torch.where(negative, -powers, powers)

    return Peer(compress, decompress)


def _cast(shape: tuple[int, ...], dtype: str = "bfloat16") -> Peer:
    narrow = getattr(torch, dtype)
    limit = torch.finfo(narrow).max

    def compress(x: Any) -> Any:
        return (x if dtype == "bfloat16" else x.clamp(-limit, limit)).to(narrow)

    return Peer(compress, lambda payload: payload.to(torch.float32))


def _block_scaled(shape: tuple[int, ...], bits: int = 8, block: int = 32) -> Peer:
    size = math.prod(shape)
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    edges = (grid[1:] + grid[:-1]) / 2
    table = torch.cat([-grid.flip(0)[:-1], grid])  # at the places 0 to 14

    def compress(x: Any) -> Any:
        blocks = _padded(x, block).view(-1, block)
        reach = 127.5 if bits == 8 else 7.0
        peaks = blocks.abs().amax(1, keepdim=True).clamp_min(_TINY)
        exponents = torch.ceil(torch.log2(peaks / reach)).to(torch.int8)
        scaled = torch.ldexp(blocks, -exponents.to(torch.int32))
        if bits == 8:
            return exponents, scaled.round_().to(torch.int8)
        places = torch.bucketize(scaled.abs(), edges, out_int32=True)
        return exponents, _stored(torch.where(scaled < 0, -places, places), 7)

    def decompress(payload: Any) -> Any:
        exponents, stored = payload
        if bits == 8:
            values = stored.to(torch.float32)
        else:
            count = exponents.numel() * block
            places = _restored(stored, 7)[:count].view(-1, block)
            values = table[places.add_(7).to(torch.int32)]
        return torch.ldexp(values, exponents.to(torch.int32)).view(-1)[:size]

    return Peer(compress, decompress)


def _eden(shape: tuple[int, ...], bits: int = 1) -> Peer:
    """EDEN's own package."""
    coder = importlib.import_module("srrcomp").Eden()
    size = math.prod(shape)

    def compress(x: Any) -> Any:
        return coder.compress(x, bits, random.getrandbits(20))

    def decompress(payload: Any) -> Any:
        return coder.decompress(payload)[:size]

    return Peer(compress, decompress)


# --- Low rank -------------------------------------------------------------------------


def _svd(shape: tuple[int, ...], rank: int = 4) -> Peer:
    def compress(x: Any) -> Any:
        u, s, v = torch.linalg.svd(x.view(shape), full_matrices=False)
        return u[:, :rank] * s[:rank], v[:rank].contiguous()

    def decompress(payload: Any) -> Any:
        left, right = payload
        return left @ right

    return Peer(compress, decompress)


def _atomo(shape: tuple[int, ...], rank: int = 4) -> Peer:
    """Singular triples are kept at random, with the probabilities of the paper."""

    def compress(x: Any) -> Any:
        u, s, v = torch.linalg.svd(x.view(shape), full_matrices=False)
        chances = _chances(s, rank)
        drawn = (torch.rand_like(s) < chances).nonzero().view(-1)
        scale = s[drawn] / chances[drawn]
        return u[:, drawn] * scale, v[drawn]

    return Peer(compress, lambda payload: payload[0] @ payload[1])


def _qsvd(shape: tuple[int, ...], rank: int = 4, levels: int = 127) -> Peer:
    """A truncated SVD whose vectors are quantised relative to their largest element."""

    def rounded(rows: Any) -> Any:
        units = rows.abs().amax(1, keepdim=True) / levels
        level = torch.floor(rows / units.clamp_min(_TINY) + torch.rand_like(rows))
        return _stored(level.clamp_(-levels, levels), levels), units

    def restored(part: Any, length: int) -> Any:
        stored, units = part
        level = _restored(stored, levels)[: rank * length].view(rank, length)
        return level * units

    def compress(x: Any) -> Any:
        u, s, v = torch.linalg.svd(x.view(shape), full_matrices=False)
        return rounded((u[:, :rank] * s[:rank]).T), rounded(v[:rank])

    def decompress(payload: Any) -> Any:
        left, right = payload
        return restored(left, shape[0]).T @ restored(right, shape[1])

    return Peer(compress, decompress)


def _count_sketch(shape: tuple[int, ...], ratio: float = 0.1, rows: int = 1) -> Peer:
    """A count sketch. Hashes are computed once, as in published code."""
    size = math.prod(shape)
    width = max(1, round(ratio * size / rows))
    places = torch.randint(width, (rows, size), dtype=torch.int32)
    signs = torch.randint(2, (rows, size), dtype=torch.int8) * 2 - 1
    damping = 1 / (1 + size / (rows * width))

    def compress(x: Any) -> Any:
        tables = torch.zeros(rows, width)
        for table, place, sign in zip(tables, places, signs, strict=True):
            table.index_add_(0, place, x * sign)
        return tables, torch.tensor(0)

    def decompress(payload: Any) -> Any:
        total = torch.zeros(size)
        for table, place, sign in zip(payload[0], places, signs, strict=True):
            total.addcmul_(table[place], sign)
        return total.mul_(damping / rows)

    return Peer(compress, decompress)


def _chances(s: Any, count: int) -> Any:
    """min(1, c s) that sum to `count`, s in descending order."""
    capped = 0
    rest = s.flip(0).cumsum(0).flip(0)
    while capped < count and (count - capped) * s[capped] > rest[capped]:
        capped += 1
    chances = (count - capped) * s / rest[capped]
    chances[:capped] = 1
    return chances


_TINY = 1e-30  # norms of empty buckets: 0 / tiny is 0
# Sum of 2^(8 (7 - i) + i), i = 0..7: byte i of a word lands on bit i of the top byte.
_GATHER_BITS = sum(1 << (8 * (7 - i) + i) for i in range(8))
_GATHER_PAIRS = sum(1 << (8 * (3 - i) + 2 * i) for i in range(4))


def _padded(x: Any, multiple: int) -> Any:
    """The flat tensor, padded with zeros where its size is not a multiple."""
    flat = x.view(-1)
    missing = -flat.numel() % multiple
    return torch.nn.functional.pad(flat, (0, missing)) if missing else flat


REGISTRY: dict[str, Factory] = {
    "adaptive_threshold": _adaptive_threshold,
    "atomo": _atomo,
    "block_scaled": _block_scaled,
    "block_top_k": _block_top_k,
    "cast": _cast,
    "count_sketch": _count_sketch,
    "dgc_top_k": _dgc_top_k,
    "eden": _eden,
    "natural": _natural,
    "qsgd": _qsgd,
    "qsgd_sparse": _qsgd_sparse,
    "qsvd": _qsvd,
    "random_k": _random_k,
    "rotating_slice": _rotating_slice,
    "sign": _sign,
    "svd": _svd,
    "terngrad": _terngrad,
    "threshold": _threshold,
    "top_k": _top_k,
}

TUNED: dict[str, Factory] = {
    "qsgd": _tuned_qsgd,
    "sign": _tuned_sign,
    "terngrad": _tuned_terngrad,
}
