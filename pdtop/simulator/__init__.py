"""Simulated SGLang workers and seeded load, for the demo and the tests."""
