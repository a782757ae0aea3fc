"""The tests of django-ratelimit and DRF, run on this package: `python -m tests.foreign`.

Their source packages are downloaded, and only the import lines are changed, as in the migration
guides. The tests that fail must be those in `differences`, and the guides explain each of these.
"""
