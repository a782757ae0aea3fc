"""Other limiters and ours: the same hits, identities and rates, on one server, in one run.

- `limiters.py`: the limiters, each with its public API;
- `rounds.py`: the cost of a hit of each;
- `requests.py`, `site.py`: the cost of whole requests, on gunicorn and uvicorn;
- `promises.py`: the promises that each keeps;
- `__main__.py`: the run, and `docs/benchmarks.inc`.
"""
