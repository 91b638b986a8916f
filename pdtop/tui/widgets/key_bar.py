"""The bottom line: the keys that matter here, taken from the declared bindings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from textual import events
from textual.binding import ActiveBinding

from pdtop.tui.lines import line_width
from pdtop.tui.palette import Look
from pdtop.tui.tones import Line, Run, Tone
from pdtop.tui.widgets.line_view import LineView

#: How keys are written; anything else is shown as Textual writes it.
KEY_NAMES = {
    "enter": "⏎", "space": "␣", "slash": "/", "question_mark": "?", "plus": "+", "minus": "-",
    "escape": "esc", "left_square_bracket": "[", "right_square_bracket": "]", "colon": ":",
    "less_than_sign": "<", "greater_than_sign": ">", "pageup": "pgup", "pagedown": "pgdn", "up": "↑",
    "down": "↓", "left": "←", "right": "→", "equals_sign": "=",
}  # fmt: skip


def key_name(key: str) -> str:
    """A key as people write it."""
    *modifiers, last = key.split("+")
    return "+".join([*modifiers, KEY_NAMES.get(last, last)])


#: Always shown, at the right end.
LAST = "app.help"


class KeyBar(LineView):
    """Shows as many of the active bindings as fit; a click runs one."""

    def __init__(
        self,
        look: Look,
        *,
        wanted: Callable[[str | None], bool] = lambda _: True,
        note: Callable[[], str] = lambda: "",
        id: str | None = None,
    ) -> None:
        """``wanted`` is asked which bindings, by id, are to be shown; ``note`` what to say before them."""
        super().__init__(look, id=id)
        self._wanted = wanted
        self._note = note
        self._spans: list[tuple[int, int, ActiveBinding]] = []

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, lambda _: self.show_keys())
        self.show_keys()

    def on_resize(self) -> None:
        self.show_keys()

    def show_keys(self) -> None:
        """Lay the active bindings out again."""
        active = [a for a in self.screen.active_bindings.values() if a.binding.show and a.enabled]
        shown = [a for a in active if self._wanted(a.binding.id)]
        unique = {a.binding.action: a for a in reversed(shown)}  # of several keys the first one
        in_order = list(reversed(unique.values()))
        in_order.sort(key=lambda a: _rank(a.binding.id))
        line, self._spans = laid_out(in_order, self.size.width, self._note())
        self.show([line])

    async def on_click(self, event: events.Click) -> None:
        for start, end, active in self._spans:
            if start <= event.x < end:
                await self.app.run_action(active.binding.action, active.node)
                return


def _rank(binding_id: str | None) -> int:
    """The screen's own keys first, then pause, operations, what works anywhere, and marking."""
    owner = (binding_id or "").split(".")[0]
    single = {"app.pause": 1, "table.mark": 4}
    return single.get(binding_id or "", {"operate": 2, "app": 3}.get(owner, 0))


def laid_out(
    bindings: Iterable[ActiveBinding], width: int, note: str = ""
) -> tuple[Line, list[tuple[int, int, ActiveBinding]]]:
    """The line for ``bindings`` in ``width`` cells after ``note``, and where each one is."""
    rest = list(bindings)
    last = [a for a in rest if a.binding.id == LAST]
    pieces = [(a, _piece(a)) for a in rest if a not in last]
    end_width = sum(line_width(_piece(a)) + 2 for a in last)
    runs: list[Run] = [(" ", Tone.MUTED)]
    spans: list[tuple[int, int, ActiveBinding]] = []
    x = 1
    if note:
        runs += [(note, Tone.MARK), ("  ", Tone.MUTED)]
        x += len(note) + 2
    for active, piece in [*pieces, *((a, _piece(a)) for a in last)]:
        size = line_width(piece)
        gap = "  " if spans else ""
        if active not in last and x + len(gap) + size + end_width > width:
            continue
        runs.append((gap, Tone.MUTED))
        x += len(gap)
        runs += piece
        spans.append((x, x + size, active))
        x += size
    return tuple(runs), spans


def _piece(active: ActiveBinding) -> Line:
    binding = active.binding
    return (
        (binding.key_display or key_name(binding.key), Tone.KEY),
        (" " + binding.description, Tone.MUTED),
    )
