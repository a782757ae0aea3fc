"""What the package costs, as ratios of one run.

`python -m tests.bench` (`make bench`): what a decision costs, and a request, an identity, a rule, a
lease, a cluster. `python -m tests.bench.peers` (`make bench-peers`): the same work done by other
limiters, in the same run. `python -m tests.tools.profile_hit`: where the time of a hit goes.
"""
