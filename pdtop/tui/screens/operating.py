"""What full screens can do to the cluster: the keys of operations, all through the one gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from pdtop.operations.model import Drain, Phase, Request, SetWeight, Undo, Undrain, View
from pdtop.tui import weight_lines
from pdtop.tui.desk import Desk
from pdtop.tui.screens.base import ConsoleScreen
from pdtop.tui.screens.value import ValueScreen

#: Keys that change something: while read-only the key line leaves them out.
NEED_ARMED = frozenset({"operate.drain", "operate.undrain", "operate.weight", "operate.undo"})


class OperatingScreen(ConsoleScreen):
    """A full screen from which operations are asked for."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "drain", "drain", id="operate.drain",
                tooltip="Drain the marked workers, else the one under the cursor"),
        Binding("D,U", "undrain", "undrain", show=False, id="operate.undrain",
                tooltip="Bring the marked workers back, else the one under the cursor"),
        Binding("w", "weight", "weight", id="operate.weight", tooltip="Change the worker's weight"),
        Binding("t", "tuning", "tune", id="operate.tuning",
                tooltip="Thresholds, policy and health settings, and what they act on"),
        Binding("u", "undo", "undo", id="operate.undo", tooltip="Take the last change back"),
        Binding("W", "arm", "arm", id="operate.arm",
                tooltip="Allow changes from this console, after a question"),
        Binding("W", "disarm", "disarm", id="operate.disarm",
                tooltip="When armed: read-only again, at once"),
        Binding("c", "drift", "drift", id="operate.drift",
                tooltip="Where config.toml, routers and workers differ; the restart plan"),
        Binding("l", "log", "log", id="operate.log", tooltip="The audit log: who changed what"),
        Binding("o", "operations", "operations", id="operate.operations",
                tooltip="Operations under way and ended, their choices, dismissing them"),
    ]  # fmt: skip

    #: Whether there is a worker under the cursor here.
    ABOUT_WORKERS: ClassVar[bool] = False

    @property
    def desk(self) -> Desk:
        return self.console_app.desk

    _steps_seen: tuple[tuple[str, Phase], ...] = ()

    def operations_moved(self) -> bool:
        """Whether an operation began, went on to another phase or was dismissed since this was last asked:
        then what lies in files may be new. How far drains are does not count."""
        steps = tuple((operation.id, operation.phase) for operation in self.desk.view.operations)
        moved, self._steps_seen = steps != self._steps_seen, steps
        return moved

    def take_view(self, view: View) -> None:
        """Show what is new of operations."""
        self.take(self.console_app.shown)

    def chosen_workers(self) -> tuple[str, ...]:
        """Keys of the workers that an operation is to be about."""
        worker = self.selected_worker()
        return () if worker is None else (worker.key,)

    def done_with_choice(self) -> None:
        """Something was started for the chosen workers."""

    def key_shown(self, binding_id: str | None) -> bool:
        if binding_id is None or not binding_id.startswith("operate."):
            return True
        if self.desk.gate is None:
            return False
        return not (self.desk.view.read_only and binding_id in NEED_ARMED)

    def _ask_about(self, keys: Sequence[str], request: Request) -> None:
        if not self.desk.may_change():
            return
        if keys:
            self.desk.ask(request, self.done_with_choice)
        else:
            self.console_app.say("no worker under the cursor", "warning")

    def action_drain(self) -> None:
        keys = self.chosen_workers()
        self._ask_about(keys, Drain(keys))

    def action_undrain(self) -> None:
        keys = self.chosen_workers()
        self._ask_about(keys, Undrain(keys))

    def action_weight(self) -> None:
        worker, app = self.selected_worker(), self.console_app
        if not self.desk.may_change():
            return
        if worker is None:
            app.say("no worker under the cursor", "warning")
            return
        weight_of = worker.weight
        key = worker.key

        def answered(typed: str | None) -> None:
            weight = None if typed is None else weight_lines.read(typed)
            if typed is not None and weight is None:
                app.say(f"{typed} is no weight: a number, 0 or more", "error")
            elif weight is not None and weight != weight_of:
                self.desk.ask(SetWeight(key, weight))

        about = weight_lines.about(worker, app.shown, min(92, self.size.width) - 8)
        title = f"Weight of {worker.name} · cluster {app.shown.cluster}"
        app.push_screen(
            ValueScreen(self.look, title, f"{worker.weight:g}", about, weight_lines.stepped), answered
        )

    def action_tuning(self) -> None:
        self.console_app.open_screen("tuning")

    def action_drift(self) -> None:
        self.console_app.open_screen("drift")

    def action_log(self) -> None:
        self.console_app.open_screen("log")

    def action_operations(self) -> None:
        self.console_app.open_screen("operations")

    def action_undo(self) -> None:
        self.desk.ask(Undo())

    def action_arm(self) -> None:
        self.desk.ask_to_arm()

    def action_disarm(self) -> None:
        self.desk.disarm()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """One key arms and disarms; what is done to a worker needs a screen that shows one."""
        if action in ("drain", "undrain", "weight"):
            return self.ABOUT_WORKERS
        if action in ("arm", "disarm"):
            return self.desk.view.read_only is (action == "arm")
        return True
