"""Runs the code that a test gives it as its last word."""

import sys

if __name__ == "__main__":
    exec(sys.argv[-1])  # noqa: S102
