"""Plans what a request is charged, composes the response to a refusal, and settles charges after
the view.

It is the only room between Django's requests and the engine. It imports engine, rules and identity.
It does not know models or publishing, and asks the database only for the user's groups.
"""

__all__ = ["durations", "headers", "overrides", "plan", "refusal", "refusal_log", "responses"]
