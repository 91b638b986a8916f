"""Numbers in words: the one way findings, tables and messages spell a share, a span or a count."""

from __future__ import annotations


def percent(share: float) -> str:
    """0.604 → ``60 %``; small shares keep a decimal (0.004 → ``0.4 %``)."""
    value = share * 100
    return f"{value:.1f} %" if 0 < value < 1 else f"{value:.0f} %"


def span(seconds: float) -> str:
    """How long something has lasted: ``9 s``, ``2m10s``, ``3h05m``."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m"


def latency(seconds: float) -> str:
    """A measured time: ``0.42 ms``, ``214 ms``, ``2.90 s``, ``61 s``."""
    milliseconds = seconds * 1000
    if milliseconds == 0:
        return "0 ms"
    if milliseconds < 1:
        return f"{milliseconds:.2f} ms"
    if milliseconds < 10:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"


def count(number: float) -> str:
    """A number of things: ``12``, ``4.5`` where a fraction means something, ``41.2k``."""
    if abs(number) >= 10_000:
        return f"{number / 1000:.1f}k"
    return f"{number:.0f}" if number == int(number) else f"{number:.1f}"


def several(number: float, one: str, many: str | None = None) -> str:
    """``1 worker``, ``3 workers``."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"
