"""Replay access logs against rates: log → moments of each client → refusals of each rate."""
