"""Run every case of a folder through the product: ``pytest tests/cases --cases DIR``.

The form of the cases is FORMAT.md beside them. A case is checked against the whole vocabulary first, then
driven by its kind's module; it works in a copy of its folder, in which ``generate`` has been run.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.cases.conftest import BY_HAND
from tests.cases.vocabulary import OWN_TEST, load_case

SHIPPED = Path(__file__).parent.parent / "fixtures" / "cases"
GENERATE_LIMIT_S = 60

Run = Callable[[Mapping[str, object], Path, Path], None]


def case_folders(root: Path) -> list[Path]:
    """The cases of a folder; plain files beside them are ignored, links to folders are followed."""
    return sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith((".", "__")))


def case_id(folder: Path) -> str:
    """The id that the case gives itself; the folder's name if it cannot be read."""
    try:
        return str(json.loads((folder / "case.json").read_text(encoding="utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return folder.name


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "folder" not in metafunc.fixturenames:
        return
    given = metafunc.config.getoption("cases", default=None)
    root = Path(given) if given else SHIPPED
    folders = case_folders(root) if root.is_dir() else []
    if not folders:
        raise pytest.UsageError(f"no cases in {root}")
    metafunc.parametrize("folder", folders, ids=[case_id(folder) for folder in folders])


def test_case(folder: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    case = load_case(folder)
    kind = str(case["kind"])
    if kind in OWN_TEST:
        pytest.skip(f"own test: kind {kind} is free form")
    for sentence in by_hand(case):
        request.node.user_properties.append((BY_HAND, f"{case['id']}: {sentence}"))
    run_case(case, folder, tmp_path)


def by_hand(case: Mapping[str, object]) -> Iterator[str]:
    """Sentences that no runner can check."""
    expect = case["expect"]
    assert isinstance(expect, Mapping)
    yield from expect.get("by_hand", ())


def run_case(case: Mapping[str, object], folder: Path, tmp_path: Path) -> None:
    """Drive one case of a fixed form.

    Raises:
        AssertionError: the product differs from what the case expects, with every difference.
    """
    copy = tmp_path / "case"
    shutil.copytree(folder, copy)
    given = case["input"]
    assert isinstance(given, Mapping)
    if "generate" in given:
        generate(str(given["generate"]), copy)
    workplace = tmp_path / "run"
    workplace.mkdir()
    runner(str(case["kind"]))(case, copy, workplace)


def generate(command: str, folder: Path) -> None:
    """Run a case's own command in a copy of its folder, with this Python first in the path."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=GENERATE_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"generate failed: {done.stderr.strip()[-2000:]}"


def runner(kind: str) -> Run:
    """``run(case, folder, workplace)`` of a kind; raises AssertionError with all differences."""
    try:
        module = importlib.import_module(f"tests.cases.kind_{kind}")
    except ModuleNotFoundError as error:
        if error.name != f"tests.cases.kind_{kind}":
            raise
        pytest.fail(f"no runner for cases of kind {kind}")
    run: Run = module.run
    return run
