"""The question before a change: built from a plan, with no under the cursor; it holds keys, never rows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from pdtop.cluster.model import Snapshot
from pdtop.operations.model import Plan, Request
from pdtop.tui import plan_lines
from pdtop.tui.lines import to_content
from pdtop.tui.palette import Look
from pdtop.tui.text import clean

#: Cells of the dialog, where the terminal has them.
WIDTH = 92


@dataclass(frozen=True, slots=True)
class Answer:
    """Yes to this plan, with the words that its overrides asked for."""

    plan: Plan
    typed: tuple[str, ...] = ()
    overrule: bool = False


class QuestionScreen(ModalScreen[Answer | None]):
    """Yes or no to a plan; no where it is refused. It closes by itself when a worker in it has vanished."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "cancel", "cancel", id="question.no", tooltip="Do nothing"),
        Binding("left,right", "app.focus_next", "Other button", show=False, id="question.other",
                tooltip="Go to the other button, or to what must be typed"),
        Binding("up,k", "scroll(-1)", "Up", show=False, id="question.up", tooltip="Read one line up"),
        Binding("down,j", "scroll(1)", "Down", show=False, id="question.down", tooltip="Read one line down"),
        Binding("pageup", "scroll(-8)", "Page up", show=False, id="question.page_up",
                tooltip="Read further up"),
        Binding("pagedown", "scroll(8)", "Page down", show=False, id="question.page_down",
                tooltip="Read further down"),
    ]  # fmt: skip

    AUTO_FOCUS = "#no"

    def __init__(
        self,
        look: Look,
        subject: Request | Plan,
        make_plan: Callable[[Request], Plan],
        snapshot: Snapshot,
    ) -> None:
        """``make_plan`` reads a file, so it is called off the loop; not at all if ``subject`` is a plan."""
        super().__init__(classes="question")
        self._look = look
        self._plan = subject if isinstance(subject, Plan) else None
        self._request = subject.request if isinstance(subject, Plan) else subject
        self._make_plan = make_plan
        #: Workers it is about that were there when it was asked.
        named = plan_lines.workers_of(self._request)
        self._about = tuple(key for key in named if snapshot.worker(key) is not None)

    @property
    def plan(self) -> Plan | None:
        """The plan that is asked about, as soon as it is made."""
        return self._plan

    def compose(self) -> ComposeResult:
        yield Static(Content(plan_lines.verb(self._request) + " …"), classes="dialog-title")
        with VerticalScroll(can_focus=False):
            yield Static(Content("…"), id="body")
        yield Vertical(id="typed")
        with Horizontal(classes="buttons"):
            yield Button(Content("Cancel"), id="no", compact=True)

    def on_mount(self) -> None:
        self.run_worker(self._prepare(), exclusive=True)

    async def _prepare(self) -> None:
        if self._plan is None:
            self._plan = await asyncio.to_thread(self._make_plan, self._request)
        plan = self._plan
        self.query_one(".dialog-title", Static).update(Content(plan_lines.title(plan)))
        self._show_body()
        no = self.query_one("#no", Button)
        if plan.refusal is not None or (plan.nothing_to_do and not plan.conflicts):
            no.label = Content("Close")
            return
        if plan.conflicts:
            no.label = Content("Keep theirs")
        for word in plan.overrides:
            field = Input(placeholder=clean(word, 80), compact=True, classes="override")
            prompt = Static(Content.assemble("type ", (clean(word, 80), "bold"), " to go on (tab)"))
            await self.query_one("#typed").mount(prompt, field)
        label = "Take mine" if plan.conflicts else plan_lines.verb(plan.request)
        yes = Button(Content(label), id="yes", compact=True, disabled=bool(plan.overrides))
        await self.query_one(".buttons").mount(yes)

    def _show_body(self) -> None:
        if self._plan is None:
            return
        width = min(WIDTH, int(self.app.size.width * 0.96)) - 6
        lines = [to_content(line, self._look.palette) for line in plan_lines.plan_lines(self._plan, width)]
        if self._plan.overrides:
            lines.append(Content(""))
        self.query_one("#body", Static).update(Content("\n").join(lines))

    def on_resize(self) -> None:
        self._show_body()

    def take(self, snapshot: Snapshot) -> None:
        """Close with a notice if a worker it is about has vanished."""
        gone = next((key for key in self._about if snapshot.worker(key) is None), None)
        if gone is not None and self.is_current:
            self.app.notify(f"{clean(gone)} is gone from the cluster; nothing was done", markup=False)
            self.dismiss(None)

    def _typed(self) -> tuple[str, ...]:
        return tuple(field.value.strip() for field in self.query(".override").results(Input))

    @on(Input.Changed, ".override")
    def _check_typed(self) -> None:
        if self._plan is not None:
            for button in self.query("#yes").results(Button):
                button.disabled = self._typed() != self._plan.overrides

    @on(Input.Submitted, ".override")
    def _to_the_button(self) -> None:
        """Enter after the name goes to the button, and does not press it."""
        for button in self.query("#yes").results(Button):
            if not button.disabled:
                button.focus()

    @on(Button.Pressed, "#yes")
    def _confirmed(self) -> None:
        if self._plan is not None:
            self.dismiss(Answer(self._plan, self._typed(), overrule=bool(self._plan.conflicts)))

    @on(Button.Pressed, "#no")
    def _cancelled(self) -> None:
        self.dismiss(None)

    def action_cancel(self) -> None:
        self.dismiss(None)

    def action_scroll(self, lines: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)
