"""Themes from TOML files: the shipped ones and the user's; a bad file is reported, never fatal."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.errors import StyleSyntaxError
from rich.style import Style
from textual.color import Color, ColorParseError
from textual.theme import Theme

from pdtop.tui.palette import Palette
from pdtop.tui.tones import Tone

DEFAULT = "dark"
MONO = "mono"

_COLORS = frozenset(
    {"primary", "secondary", "warning", "error", "success", "accent", "foreground", "background", "surface",
     "panel", "boost"}
)  # fmt: skip
_KEYS = {"name": str, "description": str, "dark": bool, "ansi": bool, "colors": dict, "tones": dict,
         "variables": dict}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConsoleTheme:
    """One theme: Textual's colours and a style for each tone."""

    name: str
    description: str
    theme: Theme
    palette: Palette


class ThemeError(Exception):
    """A theme file that cannot be used; the text names the file and the key."""


@dataclass(frozen=True, slots=True)
class ThemeShelf:
    """All usable themes by name, and what was wrong with the others."""

    themes: dict[str, ConsoleTheme] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def shipped_folder() -> Path:
    """Where the shipped themes are: in the package when installed, at the top of the source tree else."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "themes"
    return inside if inside.is_dir() else package.parent / "themes"


def load_themes(folders: Iterable[Path]) -> ThemeShelf:
    """Every ``*.toml`` of ``folders``; a later folder's theme replaces one of the same name."""
    themes: dict[str, ConsoleTheme] = {}
    problems: list[str] = []
    for folder in folders:
        for path in sorted(folder.glob("*.toml")) if folder.is_dir() else ():
            try:
                theme = load_theme(path)
            except ThemeError as error:
                problems.append(str(error))
            else:
                themes[theme.name] = theme
    if not themes:
        themes[MONO] = plain_theme()
    return ThemeShelf(themes, tuple(problems))


def plain_theme() -> ConsoleTheme:
    """A theme without any colour, for when there is no file at all."""
    theme = Theme(name=MONO, primary="ansi_default", ansi=True)
    return ConsoleTheme(MONO, "no colour", theme, Palette())


def load_theme(path: Path) -> ConsoleTheme:
    """One theme file.

    Raises:
        ThemeError: if it cannot be read or holds a key, colour or style that is not valid.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ThemeError(f"{path.name}: {error}") from error
    for key, value in data.items():
        if key not in _KEYS:
            raise ThemeError(f"{path.name}: unknown key {key}")
        if not isinstance(value, _KEYS[key]):
            raise ThemeError(f"{path.name}: {key} must be {_KEYS[key].__name__}, not {type(value).__name__}")
    name = data.get("name", path.stem)
    colors = {key: _color(path, key, value) for key, value in data.get("colors", {}).items()}
    if "primary" not in colors:
        raise ThemeError(f"{path.name}: colors.primary is missing")
    tones = {_tone(path, key): _style(path, key, value) for key, value in data.get("tones", {}).items()}
    variables = {key: _text(path, f"variables.{key}", v) for key, v in data.get("variables", {}).items()}
    theme = Theme(
        name=name,
        primary=colors.pop("primary"),
        dark=data.get("dark", True),
        ansi=data.get("ansi", False),
        variables=variables,
    )
    for key, color in colors.items():
        setattr(theme, key, color)
    return ConsoleTheme(name, data.get("description", ""), theme, Palette(tones))


def _text(path: Path, key: str, value: object) -> str:
    if not isinstance(value, str):
        raise ThemeError(f"{path.name}: {key} must be text, not {value!r}")
    return value


def _color(path: Path, key: str, value: object) -> str:
    if key not in _COLORS:
        raise ThemeError(f"{path.name}: colors.{key} is not a colour of a theme")
    text = _text(path, f"colors.{key}", value)
    try:
        Color.parse(text)
    except ColorParseError as error:
        raise ThemeError(f"{path.name}: colors.{key}: {text!r} is no colour") from error
    return text


def _tone(path: Path, key: str) -> Tone:
    try:
        return Tone(key)
    except ValueError as error:
        raise ThemeError(f"{path.name}: tones.{key} is not a tone") from error


def _style(path: Path, key: str, value: object) -> Style:
    text = _text(path, f"tones.{key}", value)
    try:
        return Style.parse(text or "none")
    except StyleSyntaxError as error:
        raise ThemeError(f"{path.name}: tones.{key}: {text!r} is no style") from error
