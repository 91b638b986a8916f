"""What of config.toml the gate has taken note of: tells a change by somebody else from one of its own; pure.

Contents come back (an undo, a hand edit that is taken back), so it is not asked whether a content was ever
written here, but whether it is the one that was noted last.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtop.config.changes import Change, config_changes
from pdtop.config.load import Loaded
from pdtop.config.save import line_diff
from pdtop.config.schema import Config


@dataclass(frozen=True, slots=True)
class Edited:
    """A change of the file by somebody else. ``before`` None: there were no good settings before."""

    before: Loaded | None
    after: Loaded
    config: Config

    @property
    def config_before(self) -> Config | None:
        return self.before.config if self.before is not None else None

    @property
    def changes(self) -> tuple[Change, ...]:
        """Value by value; empty if only comments or layout changed."""
        return config_changes(self.config_before or Config(), self.config)

    @property
    def diff(self) -> str:
        return line_diff(self.before, self.after) if self.before is not None else ""


class KnownFile:
    """``loaded`` is the last good content that was noted. A file that is broken changes nothing.

    ``others`` counts the changes by somebody else.
    """

    def __init__(self, loaded: Loaded | None) -> None:
        self.loaded = loaded if loaded is not None and loaded.config is not None else None
        self.others = 0

    @property
    def config(self) -> Config | None:
        return self.loaded.config if self.loaded is not None else None

    def wrote(self, before: Loaded, after: Loaded) -> Edited | None:
        """A write of ours over ``before``; what others had changed until then and nobody has told yet."""
        edited = self.found(before)
        if after.config is not None:
            self.loaded = after
        return edited

    def all_ours(self, others: int) -> str:
        """The digest of the file if nobody else has changed it since ``others`` was so; else ""."""
        return self.loaded.digest if self.loaded is not None and self.others == others else ""

    def found(self, loaded: Loaded) -> Edited | None:
        """The content of the file as it was found; what others have changed in it."""
        if loaded.config is None or (self.loaded is not None and self.loaded.digest == loaded.digest):
            return None
        edited, self.loaded = Edited(self.loaded, loaded, loaded.config), loaded
        self.others += 1
        return edited

    def may_be_behind(self, in_force: Loaded | None) -> bool:
        """Whether who follows the file has something else: it may not have looked since our write, or
        somebody has put back what was there before so quickly that it saw no change."""
        return in_force is not None and self.loaded is not None and in_force.digest != self.loaded.digest
