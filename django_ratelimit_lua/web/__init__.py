"""Between Django's requests and the engine: what a request is charged, the answer to it, and what is settled after."""

__all__ = ["durations", "headers", "overrides", "plan", "refusal", "refusal_log", "responses"]
