"""Secrets in settings files: find them, warn about them, and keep them out of everything that is shown.

A key belongs in an environment variable whose *name* stands in the file. What looks like the key itself is
a secret: the value of a name such as ``api_key`` or ``token``, a known key shape (``sk-...``, a JWT,
``Bearer ...``), a password inside a URL, and anything under ``*_env`` that cannot be a variable's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

from pdtop.config.keys import Path

MASK = "••••••"

_SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:api|access|secret|private|auth|admin|bearer)[_-]?key$|(?:^|[_-])key$"
    r"|(?:^|[_-])(?:token|password|passwd|passphrase|secret|authorization|credentials?)$|apikey$",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SHAPES = re.compile(
    r"""sk-[A-Za-z0-9_-]{6,}           # OpenAI and everyone who copied its form
      | (?:hf|ghp|gho|ghs|glpat|xox[abp])[_-][A-Za-z0-9_-]{10,}
      | AKIA[A-Z0-9]{12,}
      | eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*
      | (?i:bearer\s+)\S{6,}
    """,
    re.VERBOSE,
)

# Begins at a word only, else a long word from the network would be read once for each of its letters.
_ASSIGNED = re.compile(r"""((?<![\w-])([\w-]+)["']?[ \t]*[:=][ \t]*(["']))[^"'\n]+(["'])""")
_BEFORE_NAME = re.compile(r"^[^A-Za-z]+")


def is_secret_name(name: str) -> bool:
    """The name of a setting that holds a key itself (``api_key``, not ``api_key_env``)."""
    return _SECRET_NAME.search(_CAMEL.sub("_", name)) is not None


def secret_parts(name: str, value: str) -> tuple[str, ...]:
    """The secret pieces of a text value that stands under ``name``; empty if there are none."""
    if not value.strip():
        return ()
    if is_secret_name(name):
        return (value,)
    if name.lower().endswith("_env") and not _VARIABLE.match(value):
        return (value,)
    found = [match.group() for match in _SHAPES.finditer(value)]
    if "://" in value:
        found += _secrets_of_address(value)
    return tuple(found)


def _secrets_of_address(value: str) -> list[str]:
    """A password before the host, and queries such as ``?api_key=...``."""
    try:
        parts = urlsplit(value)
        password = [parts.password] if parts.password else []
    except ValueError:
        return []
    return password + [text for name, text in parse_qsl(parts.query) if is_secret_name(name)]


def find_secrets(document: object, path: Path = ()) -> Iterator[tuple[Path, str]]:
    """Every secret text in nested tables and arrays, with its path."""
    if isinstance(document, Mapping):
        for key, value in document.items():
            for text in secret_parts("", str(key)):
                yield (*path, key), text
            yield from find_secrets(value, (*path, key))
    elif isinstance(document, list | tuple):
        for index, value in enumerate(document):
            yield from find_secrets(value, (*path, index))
    elif isinstance(document, str):
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        for text in secret_parts(name, document):
            yield path, text


class Masker:
    """Replaces known secrets in any text; also what looks like one (``token = "..."`` in a comment)."""

    def __init__(self, documents: Iterable[object] = ()) -> None:
        secrets = {text for document in documents for _, text in find_secrets(document)}
        secrets |= {line.strip() for text in secrets for line in text.splitlines() if len(line.strip()) >= 4}
        self._secrets = sorted(secrets, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return _ASSIGNED.sub(_without_value, _SHAPES.sub(MASK, text))


def _without_value(found: re.Match[str]) -> str:
    name = _BEFORE_NAME.sub("", found[2])
    return f"{found[1]}{MASK}{found[4]}" if is_secret_name(name) else found[0]
