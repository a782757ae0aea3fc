"""A tiny service that is not Django: `python -m example_project.service PORT` says what it was
asked, as JSON.

It knows nothing of limits. `make demo-gateway` puts a proxy in front of it, which asks the gateway.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
            line, *fields = head.strip().split("\r\n")
            method, path, _version = line.split(" ")
            headers = {
                name.lower(): value
                for name, _, value in (field.partition(": ") for field in fields)
            }
            await reader.readexactly(int(headers.get("content-length", 0)))
            body = json.dumps({"method": method, "path": path, "headers": headers}).encode() + b"\n"
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
                % len(body)
            )
            writer.write(b"" if method == "HEAD" else body)
    writer.close()


async def serve(port: int) -> None:
    """Serve on 127.0.0.1."""
    async with await asyncio.start_server(answer, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(int(sys.argv[1])))
