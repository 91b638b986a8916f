"""Values out of JSON that a stranger sent: the right type, in bounds and harmless, or None."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

#: Counts beyond this are not exact any more; sums of larger ones could overflow.
LARGEST = 2.0**53


def json_of(body: bytes) -> object:
    """The body as JSON; None if it is none (or nests too deep to be meant)."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def mapping_of(value: object) -> Mapping[str, object]:
    """A JSON object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def list_of(value: object) -> Sequence[object]:
    """A JSON array; an empty one for anything else."""
    return value if isinstance(value, list) else ()


def number_of(value: object) -> float | None:
    """A number from 0 to 2**53; beyond it nothing is meant. Servers use -1 for "unknown"."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if 0 <= number <= LARGEST else None


def whole_of(value: object) -> int | None:
    """A whole number that is not negative."""
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() else None


def text_of(value: object, limit: int = 200) -> str | None:
    """A non-empty text, control characters replaced, cut to ``limit``."""
    if not isinstance(value, str) or not value.strip():
        return None
    text = "".join(c if c.isprintable() else " " for c in value.strip())
    return text if len(text) <= limit else text[: limit - 1] + "…"
