"""Plan the charges of a request, compose the response to a refusal, and settle charges.

This is the only package between Django's requests and the engine. It imports `engine`, `rules` and
`identity`, but not `models` or `publishing`. It queries the database only for the user's groups.
"""

__all__ = ["headers", "overrides", "plan", "reference", "refusal", "request_plan", "responses"]
