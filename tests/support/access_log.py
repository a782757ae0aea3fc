"""Lines of an access log."""

from __future__ import annotations


def access(*lines: tuple[float, str, str], status: int = 200, agent: str = "curl") -> str:
    """A log of lines of (second of a day, address, path)."""
    written = []
    for second, address, target in lines:
        hour, rest = divmod(int(second), 3600)
        clock = f"22/Nov/2026:{hour:02}:{rest // 60:02}:{rest % 60:02} +0000"
        written.append(f'{address} - - [{clock}] "GET {target} HTTP/1.1" {status} 1 "-" "{agent}"')
    return "\n".join(written)
