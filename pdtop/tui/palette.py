"""How the tones look in one theme: Rich styles, from the theme's ``[tones]`` table."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from pdtop.tui.tones import Tone

#: Looks that need no colour; a theme that leaves a tone out gets this one.
PLAIN: Mapping[Tone, str] = {
    Tone.TEXT: "",
    Tone.STRONG: "bold",
    Tone.MUTED: "dim",
    Tone.STALE: "dim",
    Tone.COLUMN: "dim",
    Tone.SORTED: "bold underline",
    Tone.OK: "",
    Tone.CRITICAL: "bold reverse",
    Tone.WARNING: "bold underline",
    Tone.INFO: "italic",
    Tone.PREFILL: "bold",
    Tone.DECODE: "bold",
    Tone.TREND: "",
    Tone.BAR: "",
    Tone.CURSOR: "reverse",
    Tone.MARK: "bold",
    Tone.HEADER: "bold",
    Tone.KEY: "bold",
    Tone.ARMED: "bold reverse",
    Tone.READ_ONLY: "",
    Tone.PAUSED: "bold reverse",
    Tone.ADDED: "bold",
    Tone.REMOVED: "dim",
}


class Palette:
    """A style for every tone."""

    def __init__(self, tones: Mapping[Tone, Style] | None = None) -> None:
        given = tones or {}
        self._styles = {t: given[t] if t in given else Style.parse(PLAIN[t] or "none") for t in Tone}
        self._on: dict[Style, dict[Tone, Style]] = {}

    def __getitem__(self, tone: Tone) -> Style:
        return self._styles[tone]

    def on(self, base: Style) -> Mapping[Tone, Style]:
        """The styles of all tones with ``base`` under them."""
        styles = self._on.get(base)
        if styles is None:
            styles = self._on[base] = {tone: base + style for tone, style in self._styles.items()}
        return styles


class Look:
    """The palette in force, shared by all widgets; the app swaps it when the theme changes."""

    def __init__(self, palette: Palette | None = None) -> None:
        self.palette = palette or Palette()
