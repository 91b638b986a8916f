"""settings.json of a chat client beside the router: where it sends requests, any key that stands in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pdtop.config.checks import secret_problem
from pdtop.config.encoding import DecodingError, decode
from pdtop.config.keys import join_key
from pdtop.config.load import unreadable
from pdtop.config.masking import MASK, find_secrets
from pdtop.config.problems import Problem


@dataclass(frozen=True, slots=True)
class Settings:
    """What was read. ``document`` holds secrets as they stand in the file: never show it."""

    path: Path
    problems: tuple[Problem, ...]
    document: Mapping[str, object] = field(default_factory=dict, repr=False)

    def text(self, name: str) -> str | None:
        """A text value by name; None if it is absent or no text."""
        value = self.document.get(name)
        return value if isinstance(value, str) else None

    @property
    def base_url(self) -> str | None:
        return self.text("base_url")

    @property
    def model(self) -> str | None:
        return self.text("model")

    @property
    def router_endpoint(self) -> str | None:
        return self.text("router_endpoint")


def load_settings(path: Path) -> Settings:
    """Read one settings.json; a bad or absent one gives a problem, never an exception."""
    try:
        text = decode(path.read_bytes()).text
        document = json.loads(text)
    except OSError as error:
        return Settings(path, (unreadable(path, error),))
    except DecodingError as error:
        return Settings(
            path, (Problem("error", "encoding", error.rule, str(path), error.line, fix=error.fix),)
        )
    except json.JSONDecodeError as error:
        return Settings(path, (Problem("error", "syntax", error.msg, str(path), error.lineno),))
    except RecursionError:
        return Settings(path, (Problem("error", "syntax", "nested too deeply", str(path)),))
    if not isinstance(document, dict):
        return Settings(path, (Problem("error", "syntax", "must be an object", str(path), 1),))
    problems = []
    for key_path in dict.fromkeys(found for found, _ in find_secrets(document)):
        name = json.dumps(key_path[-1])
        line = text.count("\n", 0, max(0, text.find(name))) + 1
        found = replace(
            secret_problem(key_path), file=str(path), line=line, key=join_key(key_path), value=MASK
        )
        problems.append(found)
    return Settings(path, tuple(problems), document)
