"""What a process loads: the screen only when it is shown, the network only where it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest


def modules_after(statement: str) -> set[str]:
    """Top-level modules loaded in a fresh interpreter after ``statement``."""
    code = f"{statement}\nimport sys\nprint('\\n'.join({{m.split('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module",
    [
        "pdtop.cli",
        "pdtop.cluster.monitor",
        "pdtop.cluster.export",
        "pdtop.insight.findings",
        "pdtop.config.load",
        "pdtop.simulator.demo",
        "pdtop.gateway.app",
    ],
)
def test_nothing_outside_the_screen_loads_textual(module: str) -> None:
    assert "textual" not in modules_after(f"import {module}")


@pytest.mark.parametrize(
    "module", ["pdtop.metrics.worker_page", "pdtop.insight.findings", "pdtop.config.load"]
)
def test_numbers_judgement_and_config_load_no_network_library(module: str) -> None:
    assert not {"httpx", "aiohttp"} & modules_after(f"import {module}")
