"""``--cases DIR`` for the case runner, and the sentences that it leaves to people."""

from __future__ import annotations

import pytest

BY_HAND = "by_hand"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cases", metavar="DIR", help="folder of cases (see FORMAT.md); default: the shipped ones"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what the cases ask of a person, once each."""
    sentences: dict[str, None] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == BY_HAND:
                    sentences[str(value)] = None
    if sentences:
        terminalreporter.section("by hand")
        for sentence in sentences:
            terminalreporter.write_line(sentence)
