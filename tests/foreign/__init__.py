"""The tests of the two packages whose names we have, run on ours: `python -m tests.foreign`.

Their source packages are downloaded, never kept here. In each only the import lines are changed, as
the guides for migrating say; what fails then must be exactly what `differences` names, and the
guides explain each of these.
"""
