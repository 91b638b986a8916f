"""How the console is to be shown, as plain values that can be built without loading the screen library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: (warning, critical) of a measure; None: that level is not coloured. Warning above critical: low is bad.
Level = tuple[float | None, float | None]

#: Names and units as in ``[console.levels]`` of config.toml.
DEFAULT_LEVELS: Mapping[str, Level] = {
    "kv_use": (0.85, 0.95),
    "hit_rate": (None, None),
    "backlog": (None, None),
    "ttft_p99_ms": (None, None),
    "tpot_p99_ms": (None, None),
    "queue_p99_ms": (None, None),
    "failure_rate": (0.01, 0.05),
    "age_s": (10.0, 30.0),
}

#: What ``+`` and ``-`` move the polling interval through, seconds.
INTERVALS: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """What the command line and ``[console]`` of config.toml say about the screen."""

    theme: str = ""  # "" picks dark, or mono where NO_COLOR asks for it
    mouse: bool = True
    keymap: Mapping[str, str] = field(default_factory=dict)  # binding id -> keys, comma between keys
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "prefill"/"decode" -> column ids
    levels: Mapping[str, Level] = field(default_factory=dict)  # over DEFAULT_LEVELS
    themes_dir: Path | None = None  # the user's own theme files
    state_dir: Path | None = None  # crash log and screenshots; None: the platform's place for it

    def level(self, measure: str) -> Level:
        """Warning and critical level of ``measure``."""
        return self.levels.get(measure, DEFAULT_LEVELS[measure])
