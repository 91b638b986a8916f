"""What a run of text means; themes say how a meaning looks. Colour is never the only carrier of it."""

from __future__ import annotations

from enum import StrEnum

from pdtop.cluster.model import Severity


class Tone(StrEnum):
    """The meanings a theme gives a style to."""

    TEXT = "text"
    STRONG = "strong"  # names and headline numbers
    MUTED = "muted"  # labels, units, separators
    STALE = "stale"  # numbers older than they should be
    COLUMN = "column"  # column titles
    SORTED = "sorted"  # the title of the sorting column
    OK = "ok"
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"  # deliberate: draining and the like
    PREFILL = "prefill"
    DECODE = "decode"
    TREND = "trend"
    BAR = "bar"
    CURSOR = "cursor"  # the row under the cursor
    MARK = "mark"  # the sign of a marked row
    HEADER = "header"  # the top line
    KEY = "key"  # a key in the footer
    ARMED = "armed"
    READ_ONLY = "read-only"
    PAUSED = "paused"
    ADDED = "added"  # lines that a change adds to a file
    REMOVED = "removed"  # lines that it takes out


#: Piece of a line: its text and what it means.
Run = tuple[str, Tone]
Line = tuple[Run, ...]

SYMBOLS = {Severity.CRITICAL: "✖", Severity.WARNING: "▲", Severity.INFO: "◌"}
TONES = {Severity.CRITICAL: Tone.CRITICAL, Severity.WARNING: Tone.WARNING, Severity.INFO: Tone.INFO}

#: Worst first.
SEVERITY_ORDER = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)
