"""The miniature under the name of the real module."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parent.parent / "fake_router.py"))["start"]()
