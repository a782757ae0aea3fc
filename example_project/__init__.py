"""A small site with rate limits, to learn from and to play with: `make demo`."""
