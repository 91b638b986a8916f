"""The embedded PD router (for the demo: round robin and power of two)."""
