"""The embedded router: one HTTP address in front of a prefill and a decode pool."""
