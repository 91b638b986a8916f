"""The file from which smg takes its workers: replaced as a whole, so that it is never read half-written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path


class Manifest:
    """``text`` is what was written last."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "workers.json"
        self.text = ""

    def write(self, content: Mapping[str, object]) -> bool:
        """False if that is what it holds."""
        text = json.dumps(content, indent=1)
        if text == self.text:
            return False
        draft = self.path.with_suffix(".new")
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)
        self.text = text
        return True
