"""Widgets that draw their own lines and repaint only what changed."""
