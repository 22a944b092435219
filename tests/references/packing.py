"""Wire formats, by integers of any length."""

from collections.abc import Sequence

__all__ = ["elias_fano", "pack"]


def pack(symbols: Sequence[int], bits: int) -> list[int]:
    """The words of `payloads.pack`, by integers of any length.

    32 symbols, `columns` apart, are one integer of 32 * bits bits; its 32-bit digits
    are the words of that column.
    """
    columns = -(-len(symbols) // 32)
    padded = [*symbols, *[0] * (columns * 32 - len(symbols))]
    words = [0] * (bits * columns)
    for column in range(columns):
        integer = sum(
            s << (row * bits) for row, s in enumerate(padded[column::columns])
        )
        for digit in range(bits):
            words[digit * columns + column] = integer >> (32 * digit) & 0xFFFFFFFF
    return words


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
