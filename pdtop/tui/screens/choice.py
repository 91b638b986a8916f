"""A small list to choose one thing from: sort columns, themes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option


class ChoiceScreen(ModalScreen[str | None]):
    """Answers with the id of the chosen entry, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "leave", "leave", id="choice.leave", tooltip="Close the list without choosing"),
    ]

    def __init__(
        self,
        title: str,
        entries: Sequence[tuple[str, str]],
        *,
        current: str | None = None,
        preview: Callable[[str], object] | None = None,
    ) -> None:
        """``entries`` are (id, words); ``preview`` is told the id of the entry under the cursor."""
        super().__init__(classes="small")
        self._title = title
        self._entries = entries
        self._current = current
        self._preview = preview

    def compose(self) -> ComposeResult:
        options = [Option(Content(words), id=key) for key, words in self._entries]
        yield Static(Content(self._title), classes="dialog-title")
        yield OptionList(*options)

    def on_mount(self) -> None:
        places = [key for key, _ in self._entries]
        choices = self.query_one(OptionList)
        choices.highlighted = places.index(self._current) if self._current in places else 0
        choices.focus()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if self._preview is not None and event.option.id is not None:
            self._preview(event.option.id)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)

    def action_leave(self) -> None:
        self.dismiss(None)
