"""Simulated SGLang workers and load: for the demo, for tests, for what-if."""
