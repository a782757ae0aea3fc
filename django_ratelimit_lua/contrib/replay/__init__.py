"""Log replay: what rates would have refused in access logs.

It may import the rooms of the core that need no Redis, and no other optional app. It must not know
the rules of the site or call Redis.
"""
