"""What can be tuned in config.toml: range, default, meaning, and what the present router does with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["live", "restart", "none", "pdtop", "unknown"]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of config.toml as a tuning screen shows it.

    ``effect`` says what the present engine does with it: at once (``live``), with a restart, nothing
    (``none``: recorded, no effect here), read by pdtop itself (``pdtop``) or not known.
    """

    path: tuple[str, ...]
    group: str  # "prefill", "decode", "health", "slo", ...
    title: str
    meaning: str  # one plain sentence
    valid: str  # "0 to 1"
    default: str
    value: str  # as the file spells it, else the default
    written: bool  # the file says it, it is not only the default
    effect: Kind
    effect_words: str
    choices: tuple[str, ...] = ()
    step: float | None = None  # what one press of + or - means
