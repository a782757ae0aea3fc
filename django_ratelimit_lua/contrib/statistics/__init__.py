"""Statistics of decisions: counts, sections of pages, metrics, and hourly counts in the database.

It may import the rooms of the core, `admin` included, but no other optional app. It must not know
how a decision is made: it gets the decided charges, and adds no round trip to a request.
"""
