"""A metrics page as a list of series that can be searched; a line is parsed only when it is shown.

Splitting and searching a page of 84,000 lines is quick, parsing it is not: a full parse takes seconds in
which no key would be answered. And one line that no parser accepts must not hide all others.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from pdtop.tui import text

#: A line longer than this is not handed to the parser.
LONGEST = 8192

#: Labels that say nothing on a page of one worker; they come last.
_SAME_EVERYWHERE = frozenset({"engine_type", "model_name", "moe_ep_rank", "pid", "pp_rank", "tp_rank"})


@dataclass(frozen=True, slots=True)
class SeriesLine:
    """One series: ``labels`` as ``key="value"`` pairs, ``value`` as a number in words.

    ``bad``: the line is not readable and stands whole in ``labels``.
    """

    name: str
    labels: str
    value: str
    bad: bool = False


class RawPage:
    """The sample lines of one page, and those that match a search."""

    def __init__(self, page: str) -> None:
        self._lines = [line for line in page.split("\n") if line and line[0] != "#" and not line.isspace()]
        self._keys: list[str] | None = None
        self.size = len(page) if page.isascii() else len(page.encode("utf-8", "replace"))

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> str:
        """The line as exported."""
        return self._lines[index]

    def search(self, words: str) -> list[int]:
        """Indices of the lines whose name or labels contain every one of ``words``; case does not matter."""
        rows = list(range(len(self._lines)))
        needles = words.lower().split()
        if needles and self._keys is None:  # made at the first search: it costs as much as all else together
            self._keys = [series_of(line) for line in "\n".join(self._lines).lower().split("\n")]
        keys = self._keys or []
        for needle in needles:
            rows = [i for i in rows if needle in keys[i]]
        return rows


def series_of(line: str) -> str:
    """Name and labels of a sample line: all up to the last brace, or else up to the first space."""
    return line[: line.rfind("}") + 1] or line.partition(" ")[0]


def parsed(line: str) -> SeriesLine:
    """The parts of a sample line, made harmless; a line that is not readable is shown whole."""
    body = line.partition(" # ")[0] if " # {" in line else line  # an exemplar is not part of the series
    try:
        samples = [
            s for family in text_string_to_metric_families(body[:LONGEST] + "\n") for s in family.samples
        ]
        name, labels, value = samples[0][:3]
    except (ValueError, IndexError, KeyError, TypeError):
        return SeriesLine("", text.clean(line), "", bad=True)
    pairs = " ".join(f'{key}="{labels[key]}"' for key in sorted(labels, key=_SAME_EVERYWHERE.__contains__))
    return SeriesLine(text.clean(name), text.clean(pairs), number(float(value)))


def number(value: float) -> str:
    """A sample value without loss: ``3``, ``0.25``, ``1.7e+09``, ``NaN``, ``+Inf``."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
