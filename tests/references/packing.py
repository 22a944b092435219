"""Wire formats, by integers of any length."""

from collections.abc import Sequence

__all__ = ["pack"]


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
