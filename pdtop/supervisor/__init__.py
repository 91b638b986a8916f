"""Runs the router that config.toml names: pdtop's own, or smg or sglang-router as a child process."""
