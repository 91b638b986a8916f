"""How the console is to be shown, as plain values that can be built without loading the screen library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: (warning, critical) per measure, in the measure's own unit: ratios 0..1, seconds, requests.
DEFAULT_LEVELS: Mapping[str, tuple[float, float]] = {
    "kv_use": (0.80, 0.95),
    "queue_p99_s": (2.0, 10.0),
    "failure_rate": (0.01, 0.10),
}

#: What ``interval`` is moved through by ``+`` and ``-``, seconds.
INTERVALS: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """What the command line and ``[console]`` of config.toml say about the screen."""

    theme: str = ""  # "" picks dark, or mono where NO_COLOR asks for it
    mouse: bool = True
    read_only: bool = True
    interval_s: float = 1.0
    keymap: Mapping[str, str] = field(default_factory=dict)  # binding id -> key(s)
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # "prefill"/"decode" -> column ids
    levels: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # over DEFAULT_LEVELS
    themes_dir: Path | None = None  # the user's own theme files
    state_dir: Path | None = None  # crash log and screenshots; None: the platform's place for it

    def level(self, measure: str) -> tuple[float, float]:
        """Warning and critical level of ``measure``."""
        return self.levels.get(measure, DEFAULT_LEVELS[measure])
