"""Prometheus text in, numbers out: reader, name catalogue, rank rules, distributions, series."""
