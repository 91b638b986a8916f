"""All findings with evidence and what to do, worst first."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from pdtop.cluster.model import Finding, Snapshot, Worker
from pdtop.tui import text
from pdtop.tui.headline import whose, worst_first
from pdtop.tui.lines import to_content
from pdtop.tui.palette import Look, Palette
from pdtop.tui.screens.operating import OperatingScreen
from pdtop.tui.tones import SYMBOLS, TONES, Line, Tone


class FindingsScreen(OperatingScreen):
    """A list of findings; enter opens the worker concerned."""

    ABOUT_WORKERS = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter", "open", "worker", id="findings.open", tooltip="Open the worker the finding is about"
        ),
        Binding("escape,f", "app.back", "back", id="findings.back", tooltip="Back to the overview"),
    ]

    def __init__(self, look: Look) -> None:
        super().__init__(look)
        self._shown: list[Finding] = []
        self._taken = False  # nothing was shown yet, not even that nothing is wrong

    def body(self) -> ComposeResult:
        yield OptionList(id="findings")

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def take(self, snapshot: Snapshot) -> None:
        found = worst_first(snapshot.findings)
        choices = self.query_one(OptionList)
        texts = [finding_text(f, snapshot, self.look.palette) for f in found]
        same = [_identity(f) for f in found] == [_identity(f) for f in self._shown]
        if same and self._taken:
            for index, (old, new) in enumerate(zip(self._shown, found, strict=True)):
                if old != new:
                    choices.replace_option_prompt_at_index(index, texts[index])
        else:
            at = self._selected()
            choices.clear_options()
            choices.add_options(
                [Option(t) for t in texts] or [Option(Content("✓ nothing wrong"), disabled=True)]
            )
            places = [_identity(f) for f in found]
            choices.highlighted = places.index(_identity(at)) if at and _identity(at) in places else 0
        self._shown, self._taken = found, True

    def selected_worker(self) -> Worker | None:
        finding = self._selected()
        if finding is None or finding.worker is None:
            return None
        return self.console_app.shown.worker(finding.worker)

    def _selected(self) -> Finding | None:
        index = self.query_one(OptionList).highlighted
        return self._shown[index] if index is not None and index < len(self._shown) else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.action_open()

    def action_open(self) -> None:
        finding = self._selected()
        if finding is not None and finding.worker is not None:
            self.console_app.open_worker(finding.worker)


def _identity(finding: Finding) -> tuple[str, str | None, str | None, str | None]:
    return finding.kind, finding.worker, finding.pool, finding.router


def finding_text(finding: Finding, snapshot: Snapshot, palette: Palette) -> Content:
    """A finding as a paragraph: what, how it is known, what to do."""
    tone = TONES[finding.severity]
    lines: list[Line] = [
        (
            (f"{SYMBOLS[finding.severity]} {finding.severity.value}  ", tone),
            (whose(finding, snapshot), Tone.STRONG),
            ("" if finding.since_s is None else f"   for {text.age(finding.since_s)}", Tone.MUTED),
        ),
        (("  " + text.clean(finding.text), Tone.TEXT),),
    ]
    if finding.evidence:
        lines.append((("  seen  ", Tone.MUTED), (text.clean(finding.evidence), Tone.MUTED)))
    if finding.fix:
        lines.append((("  do    ", Tone.MUTED), (text.clean(finding.fix), Tone.TEXT)))
    return Content("\n").join(to_content(line, palette) for line in (*lines, ()))
