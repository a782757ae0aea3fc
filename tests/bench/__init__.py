"""Benchmarks.

- `python -m tests.bench` (`make bench`): the costs of decisions, requests, rules and clusters;
- `python -m tests.bench.peers` (`make bench-peers`): the same work with other limiters;
"""
