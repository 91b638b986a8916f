"""Read config.toml: never raises for bad content, tells all errors at once, each with its line."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import ValidationError

from pdtop.config.checks import Found, check_document, check_values
from pdtop.config.disk import read_regular
from pdtop.config.encoding import Decoded, DecodingError, decode
from pdtop.config.keys import Path as KeyPath
from pdtop.config.keys import join_key
from pdtop.config.layout import Duplicate, Layout, LayoutError, scan
from pdtop.config.masking import MASK, Masker, is_secret_name
from pdtop.config.problems import Problem, errors, from_validation
from pdtop.config.schema import Config

_PLACE = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")


@dataclass(frozen=True, slots=True)
class Loaded:
    """One reading of a config file. ``config`` is None if there is an error: then nothing of it is in force.

    ``document`` is the file as parsed (unknown keys included, defaults not). ``digest`` is the SHA-256 of the
    bytes: the version that an edit starts from. ``text`` is without byte order mark, line ends as found.
    """

    path: Path
    config: Config | None
    problems: tuple[Problem, ...]
    digest: str
    raw: bytes = b""
    text: str = ""
    bom: bool = False
    newline: str = "\n"
    document: Mapping[str, object] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.config is not None


def digest_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def load(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> Loaded:
    """Read and check one file. A file that cannot be read gives a problem, too."""
    try:
        raw = read(path)
    except OSError as error:
        return Loaded(path, None, (unreadable(path, error),), digest_of(b""))
    return load_bytes(path, raw)


def reload(last: Loaded) -> Loaded:
    """Read the same file again; the same object if its bytes have not changed."""
    try:
        raw = read_regular(last.path)
    except OSError:
        return load(last.path, read_regular)
    return last if raw and raw == last.raw else load_bytes(last.path, raw)


def unreadable(path: Path, error: OSError) -> Problem:
    """Why a file could not be read, in words."""
    match error:
        case FileNotFoundError():
            rule, fix = "the file is missing (no such file)", "`pdtop config init` prints one to start from"
        case PermissionError():
            rule, fix = "permission denied", f"as this user: chmod u+r {path}"
        case IsADirectoryError():
            rule, fix = "is a folder, not a file", ""
        case _:
            rule, fix = f"cannot be read: {error.strerror or error}", ""
    return Problem("error", "unreadable", rule, file=str(path), fix=fix)


def load_bytes(path: Path, raw: bytes) -> Loaded:
    """Check these bytes as if they stood in ``path``."""
    digest = digest_of(raw)
    try:
        decoded = decode(raw)
    except DecodingError as error:
        problem = Problem("error", "encoding", error.rule, str(path), error.line, fix=error.fix)
        return Loaded(path, None, (problem,), digest, raw)
    loaded = Loaded(path, None, (), digest, raw, decoded.text, decoded.bom, decoded.newline)
    try:
        document = tomllib.loads(decoded.text)
        layout = scan(decoded.text)
    except (tomllib.TOMLDecodeError, LayoutError) as error:
        return replace(loaded, problems=_syntax_problems(path, decoded, error))
    except RecursionError:
        return replace(loaded, problems=(Problem("error", "syntax", "nested too deeply", str(path)),))
    config, found = _check(document)
    problems = tuple(_placed(problem, at, path, layout) for at, problem in found)
    order = sorted(problems, key=lambda p: (p.severity != "error", p.line or 0))
    return replace(
        loaded, config=None if errors(problems) else config, problems=tuple(order), document=document
    )


def _check(document: Mapping[str, object]) -> tuple[Config | None, list[Found]]:
    """Every problem of a parsed document, and the settings if types and ranges are right."""
    found = list(check_document(document))
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        return None, found + from_validation(error)
    return config, found + list(check_values(config))


def _placed(problem: Problem, at: KeyPath, path: Path, layout: Layout) -> Problem:
    """The problem with file, line, key and the value as typed, masked if it may be a secret."""
    shown = layout.source(at)
    name = next((part for part in reversed(at) if isinstance(part, str)), "")
    mask = Masker()
    if shown is not None:
        node = layout.nodes[at]
        if problem.kind == "secret_in_file" or is_secret_name(name):
            shown = MASK
        elif node.kind != "scalar" or len(shown) > 60:
            shown = None  # the key says enough
        else:
            shown = mask(shown)
    return replace(
        problem,
        file=str(path),
        line=layout.line_of(at),
        key=mask(join_key(at)),
        value=shown,
        suggestion=None if problem.suggestion is None else mask(problem.suggestion),
    )


def _syntax_problems(path: Path, decoded: Decoded, error: Exception) -> tuple[Problem, ...]:
    """Why the text is not TOML: names given twice with both lines, else the first place that breaks it."""
    try:
        layout = scan(decoded.text)
    except LayoutError as broken:
        rule = Masker()(broken.rule)
        return (Problem("error", "syntax", rule, str(path), broken.line, fix=broken.hint),)
    if layout.duplicates:
        return tuple(_duplicate(path, twice) for twice in layout.duplicates)
    rule, line = _tomllib_words(str(error), decoded.text)
    fix = 'text needs quotes: name = "value"' if "value" in rule else ""
    return (Problem("error", "syntax", rule, str(path), line, fix=fix),)


def _duplicate(path: Path, twice: Duplicate) -> Problem:
    rule = f"given twice: first on line {twice.first_line}, again on line {twice.line}"
    return Problem(
        "error", "duplicate_key", rule, str(path), twice.line, join_key(twice.path), fix="keep one of them"
    )


def _tomllib_words(message: str, text: str) -> tuple[str, int]:
    """``tomllib``'s message as rule and line."""
    found = _PLACE.search(message)
    if found is None:
        return message, 1
    rule = message[: found.start()].strip()
    return rule[:1].lower() + rule[1:], int(found[1]) if found[1] else text.count("\n") + 1
