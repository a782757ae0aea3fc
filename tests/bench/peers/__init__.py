"""Other limiters beside ours: the same hits, identities and rates, on one server, in one run.

- `limiters.py`: who they are, each through its own public entry;
- `rounds.py`: how a hit of each is measured;
- `requests.py`, `site.py`, `load.py`: what whole requests cost, on gunicorn and uvicorn;
- `__main__.py`: the run, and `docs/benchmarks.inc`.
"""
