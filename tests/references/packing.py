"""Wire formats, by integers of any length."""

import math
from collections.abc import Sequence
from fractions import Fraction


def pack(symbols: Sequence[int], bits: int) -> list[int]:
    """The bytes of `payloads.pack`: bits cut into fields, each field bit by bit."""
    result, low = [], 0
    for width in (8, 8, 8, 8, 4, 2, 1):
        if low + width <= bits:
            fields = [symbol >> low & (1 << width) - 1 for symbol in symbols]
            string = "".join(f"{field:0{width}b}" for field in fields)
            string += "0" * (-len(string) % 8)
            result += [int(string[i : i + 8], 2) for i in range(0, len(string), 8)]
            low += width
    return result


def pack_digits(symbols: Sequence[int], base: int, digits: int) -> list[int]:
    """The least byte b with b / 256 >= 0.ddd in the base, digit by digit."""
    result = []
    for start in range(0, len(symbols), digits):
        group = [*symbols[start : start + digits], *[0] * digits][:digits]
        fraction = sum(Fraction(d, base ** (i + 1)) for i, d in enumerate(group))
        result.append(math.ceil(fraction * 256))
    return result


def elias_fano(places: Sequence[int], limit: int) -> tuple[list[int], list[int]]:
    """Words of the low bits and of the steps, bit by bit."""
    count, width = len(places), 0
    while count * 2 ** (width + 1) <= limit:
        width += 1
    low = [(place >> bit) & 1 for bit in range(width) for place in places]
    high = [0] * (count + ((limit - 1) >> width) + 1)
    for rank, place in enumerate(places):
        high[(place >> width) + rank] = 1
    return _words(low), _words(high)


def _words(bits: Sequence[int]) -> list[int]:
    return [
        sum(bit << i for i, bit in enumerate(bits[start : start + 32]))
        for start in range(0, len(bits), 32)
    ]
