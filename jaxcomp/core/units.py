"""Numbers as short text with the unit a reader thinks in; a dash for NaN."""

import math

MISSING = "–"


def bytes_text(count: float) -> str:
    """A number of bytes in decimal units with three digits.

    Example:
      >>> bytes_text(4_287_654), bytes_text(999_960), bytes_text(12)
      ('4.29 MB', '1 MB', '12 B')
    """
    if not math.isfinite(count):
        return MISSING
    return _scaled(count, ["B", "kB", "MB", "GB", "TB", "PB"])


def seconds_text(seconds: float) -> str:
    """A duration with its two leading units.

    Example:
      >>> seconds_text(3725), seconds_text(192), seconds_text(8.26)
      ('1 h 02 min', '3 min 12 s', '8.26 s')
      >>> seconds_text(0.0042)
      '4.2 ms'
    """
    if not math.isfinite(seconds):
        return MISSING
    if seconds < 1:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 60:
        return f"{_three_digits(seconds)} s"
    if round(seconds) < 3600:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def percent_text(fraction: float) -> str:
    """A fraction as a percentage with two decimals.

    Example:
      >>> percent_text(0.9125), percent_text(float("nan"))
      ('91.25 %', '–')
    """
    return f"{100 * fraction:.2f} %" if math.isfinite(fraction) else MISSING


def rate_text(bandwidth: float) -> str:
    """Bytes a second in the bits that networks are sold by; a dash for infinity.

    Example:
      >>> rate_text(125e6), rate_text(11.6e6), rate_text(float("inf"))
      ('1 Gbit/s', '92.8 Mbit/s', '–')
    """
    if not math.isfinite(bandwidth):
        return MISSING
    return _scaled(8 * bandwidth, ["bit", "kbit", "Mbit", "Gbit", "Tbit"]) + "/s"


def times_text(factor: float) -> str:
    """A factor with three digits.

    Example:
      >>> times_text(49.93), times_text(1.0)
      ('49.9×', '1×')
    """
    return f"{_three_digits(factor)}×" if math.isfinite(factor) else MISSING


def times_fewer(exact: float, left: float) -> float:
    """How many times fewer bytes left a worker over a run than with `exact`.

    This is the ratio that tables, plots and the console show.

    Args:
      exact: bytes that would have left it with `exact`, whose all-reduce is a ring.
      left: bytes that left it.

    Returns:
      NaN for one worker, whom nothing leaves, and where either is not known.

    Example:
      >>> times_fewer(60e6, 3e6), times_fewer(0, 0), times_fewer(60e6, 0)
      (20.0, nan, inf)
    """
    if not exact > 0 or math.isnan(left):
        return math.nan
    return exact / left if left else math.inf


def number_text(value: float) -> str:
    """A number with four digits, or all digits of a moderate whole part.

    Example:
      >>> number_text(0.312653), number_text(50000.0), number_text(4003.2)
      ('0.3127', '50,000', '4,003')
      >>> number_text(2.5e30), number_text(float("inf"))
      ('2.5e+30', 'inf')
    """
    if math.isnan(value):
        return MISSING
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _scaled(count: float, units: list[str]) -> str:
    """Three digits and the unit for which they are below a thousand."""
    value = float(f"{count:.3g}")
    while abs(value) >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{_three_digits(value)} {units[0]}"


def _three_digits(value: float) -> str:
    # `g` alone would write 1234 as 1.23e+03.
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
