"""Rules: a limit, and when it applies; from the settings and from the admin, by one vocabulary, parser and matcher."""
