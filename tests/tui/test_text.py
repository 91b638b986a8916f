"""How numbers and outside text are written."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from pdtop.metrics.distribution import Quantile
from pdtop.tui import text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (0.0, "0ms"),
        (0.0004, "0.4ms"),
        (0.0042, "4.2ms"),
        (0.00996, "10ms"),
        (0.021, "21ms"),
        (0.214, "214ms"),
        (0.9994, "999ms"),
        (0.9996, "1.00s"),
        (1.924, "1.92s"),
        (9.996, "10.0s"),
        (14.32, "14.3s"),
        (99.96, "100s"),
        (134.2, "134s"),
        (720.0, "720s"),
        (1200.0, "20m"),
    ],
)
def test_latencies(value: float | None, words: str) -> None:
    assert text.seconds(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (Quantile(60.0, at_least=True), "≥60s"),
        (Quantile(0.05, below=0.1), "<100ms"),
        (Quantile(0.0002, below=0.0005), "<0.5ms"),
        (Quantile(2.5, at_least=True), "≥2.5s"),
        (Quantile(0.812), "812ms"),
    ],
)
def test_quantiles_say_what_they_do_not_know(value: Quantile | None, words: str) -> None:
    assert text.quantile(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (0.0, "0"),
        (0.04, "0"),
        (0.4, "0.4"),
        (9.0, "9"),
        (9.96, "10"),
        (41.2, "41"),
        (999.4, "999"),
        (999.6, "1.0k"),
        (41_234.0, "41.2k"),
        (99_960.0, "100k"),
        (412_000.0, "412k"),
        (1_130_000.0, "1.1M"),
        (2.5e9, "2.5G"),
        (3e12, "3000G"),
        (-1500.0, "-1.5k"),
    ],
)
def test_rates(value: float | None, words: str) -> None:
    assert text.si(value) == words


@pytest.mark.parametrize(
    ("value", "words"), [(None, "–"), (0.0, "0"), (12.4, "12"), (999.0, "999"), (1234.0, "1.2k")]
)
def test_counts(value: float | None, words: str) -> None:
    assert text.count(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (0.0, "0%"), (0.001, "<1%"), (0.0051, "1%"), (0.62, "62%"), (1.0, "100%")],
)
def test_percent_keeps_a_little_apart_from_nothing(value: float | None, words: str) -> None:
    assert text.percent(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, "–"), (0.9719, "97.2%"), (0.99949, "99.9%"), (0.99951, ">99.9%"), (1.0, "100%"), (0.0, "0.0%")],
)
def test_goodput_is_never_rounded_up_to_all(value: float | None, words: str) -> None:
    assert text.percent1(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (-1.0, "0s"),
        (1.9, "1s"),
        (59.9, "59s"),
        (130.0, "2m10s"),
        (11_100.0, "3h05m"),
        (200_000.0, "2d07h"),
    ],
)
def test_ages(value: float | None, words: str) -> None:
    assert text.age(value) == words


@pytest.mark.parametrize(
    ("dirty", "safe"),
    [
        ("plain [red]x[/]", "plain [red]x[/]"),
        ("\x1b[31mred\x07", "�[31mred�"),
        ("a\tb\r\nc", "a b  c"),
        ("x\u202egnp.exe", "x�gnp.exe"),
        ("zero\u200bwidth", "zero�width"),
        ("c1\x9b31m", "c1�31m"),
        ("lone\ud800", "lone�"),
        ("e\u0301te", "éte"),
        ("日本", "日本"),
    ],
)
def test_outside_text_is_made_harmless(dirty: str, safe: str) -> None:
    assert text.clean(dirty) == safe


def test_outside_text_is_capped() -> None:
    assert text.clean("a" * 1000, 10) == "aaaaaaaaa…"
    assert len(text.clean("é" * 1000, 10)) == 10


@pytest.mark.parametrize("words", ["", "short", "exactly-ten", "日本-ワーカー-7", "a日b本c", "x" * 99])
@pytest.mark.parametrize("width", [0, 1, 2, 5, 11, 30])
def test_fit_is_exact_in_cells(words: str, width: int) -> None:
    assert cell_len(text.fit(words, width)) == width
    assert cell_len(text.fit(words, width, "right")) == width


@pytest.mark.parametrize(
    "words", ["10.0.1.11:30001", "decode-3.svc.prod.cluster.local:30000", "日本-ワーカー-77:1"]
)
@pytest.mark.parametrize("width", [5, 8, 12, 17, 24])
def test_the_middle_is_what_is_left_out(words: str, width: int) -> None:
    short = text.middle(words, width)
    assert cell_len(short) <= width
    if cell_len(words) <= width:
        assert short == words
    else:
        assert "…" in short
        assert short[0] == words[0]
        assert short[-1] == words[-1]


@pytest.mark.parametrize(
    ("value", "floor", "full"),
    [
        (0.0, 5.0, 5.0),
        (5.0, 5.0, 5.0),
        (5.1, 5.0, 10.0),
        (13.0, 10.0, 20.0),
        (21.0, 10.0, 50.0),
        (1.3, 0.5, 2.0),
    ],
)
def test_scales_move_in_steps(value: float, floor: float, full: float) -> None:
    assert text.nice_ceiling(value, floor) == pytest.approx(full)


@pytest.mark.parametrize(
    ("value", "drawn"),
    [(None, "     "), (0.0, "     "), (0.01, "▏    "), (10.0, "█████"), (99.0, "█████"), (5.0, "██▌  ")],
)
def test_bars(value: float | None, drawn: str) -> None:
    assert text.bar(value, 10.0, 5) == drawn


def test_sparklines_keep_gaps_and_end_at_the_right() -> None:
    assert text.sparkline((0.0, 1.0, None, 4.0, 8.0), 8.0, 7) == "  ▁▁ ▄█"
    assert text.sparkline((1.0, 2.0, 3.0), 8.0, 2) == "▂▃"
    assert text.sparkline((100.0,), 8.0, 1) == "█"
    assert text.sparkline((), 0.0, 3) == "   "
