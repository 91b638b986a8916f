"""Theme files: the shipped ones are good, a bad one is a sentence, and mono has no colour."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.color import Color

from pdtop.tui.palette import PLAIN
from pdtop.tui.themes import ThemeError, load_theme, load_themes, shipped_folder
from pdtop.tui.tones import Tone

SHIPPED = sorted(shipped_folder().glob("*.toml"))


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_themes() -> None:
    shelf = load_themes([shipped_folder()])
    assert sorted(shelf.themes) == ["ansi16", "contrast", "dark", "light", "mono"]
    assert shelf.problems == ()


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_a_shipped_theme_has_a_style_for_every_tone(path: Path) -> None:
    import tomllib

    assert set(tomllib.loads(path.read_text(encoding="utf-8"))["tones"]) == {t.value for t in Tone}


def test_mono_has_no_colour_and_ansi16_only_the_terminals_own() -> None:
    themes = load_themes([shipped_folder()]).themes
    for tone in Tone:
        assert themes["mono"].palette[tone].color is None, tone
        assert themes["mono"].palette[tone].bgcolor is None, tone
        for color in (themes["ansi16"].palette[tone].color, themes["ansi16"].palette[tone].bgcolor):
            assert color is None or color.is_system_defined, tone


@pytest.mark.parametrize("path", SHIPPED, ids=lambda p: p.stem)
def test_severities_differ_from_each_other_and_from_text(path: Path) -> None:
    palette = load_theme(path).palette
    tones = (Tone.CRITICAL, Tone.WARNING, Tone.INFO, Tone.TEXT)
    assert len({palette[t] for t in tones}) == 4


@pytest.mark.parametrize("name", ["dark", "light", "contrast"])
def test_text_is_readable_on_its_ground(name: str) -> None:
    """Contrast of at least 4.5 (WCAG AA) for what has to be read, 3 for what may fade."""
    loaded = load_theme(shipped_folder() / f"{name}.toml")
    for tone in Tone:
        style = loaded.palette[tone]
        if style.color is None:
            continue
        ground = (
            Color.from_rich_color(style.bgcolor)
            if style.bgcolor
            else Color.parse(loaded.theme.background or "")
        )
        least = 3.0 if tone in (Tone.STALE, Tone.BAR, Tone.TREND) else 4.5
        if tone is Tone.BAR and name == "light":
            least = 2.0  # a bar's length is read, not its colour
        assert contrast(Color.from_rich_color(style.color), ground) >= least, tone


def contrast(one: Color, other: Color) -> float:
    def luminance(color: Color) -> float:
        def channel(value: int) -> float:
            part = value / 255
            return float(part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4)

        return 0.2126 * channel(color.r) + 0.7152 * channel(color.g) + 0.0722 * channel(color.b)

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_a_users_theme_replaces_a_shipped_one_and_may_leave_tones_out(tmp_path: Path) -> None:
    write(tmp_path, "x.toml", 'name = "dark"\n[colors]\nprimary = "#ff0000"\n')
    shelf = load_themes([shipped_folder(), tmp_path])
    assert shelf.themes["dark"].theme.primary == "#ff0000"
    assert str(shelf.themes["dark"].palette[Tone.CRITICAL]) == PLAIN[Tone.CRITICAL]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name = [", "bad.toml: "),
        ('colour = "x"', "bad.toml: unknown key colour"),
        ("dark = 3\n", "bad.toml: dark must be bool, not int"),
        ('name = "x"', "bad.toml: colors.primary is missing"),
        ('[colors]\nprimary = "no-colour"', "bad.toml: colors.primary: 'no-colour' is no colour"),
        ("[colors]\nprimary = 3", "bad.toml: colors.primary must be text, not 3"),
        ('[colors]\nprimary = "red"\npink = "red"', "bad.toml: colors.pink is not a colour of a theme"),
        ('[colors]\nprimary = "red"\n[tones]\nloud = "red"', "bad.toml: tones.loud is not a tone"),
        ('[colors]\nprimary = "red"\n[tones]\ntext = "#12"', "bad.toml: tones.text: '#12' is no style"),
        ('[colors]\nprimary = "red"\n[variables]\nx = 1', "bad.toml: variables.x must be text, not 1"),
    ],
)
def test_a_bad_file_is_named_with_its_key(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, "bad.toml", text)
    with pytest.raises(ThemeError, match=r".") as caught:
        load_theme(path)
    assert str(caught.value).startswith(said)
    shelf = load_themes([shipped_folder(), tmp_path])
    assert len(shelf.themes) == 5
    assert len(shelf.problems) == 1


def test_bytes_that_are_no_text_are_a_problem_too(tmp_path: Path) -> None:
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe\x00")
    assert load_themes([tmp_path]).problems[0].startswith("bin.toml: ")


def test_without_any_file_there_still_is_a_theme(tmp_path: Path) -> None:
    shelf = load_themes([tmp_path / "nowhere"])
    assert list(shelf.themes) == ["mono"]
