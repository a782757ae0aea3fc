"""The URLs of the gateway for services and monitoring: `json` and `health`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ...extension import require
from ...operations.health import ahealth
from .answer import Answer
from .conf import PROTOCOL
from .meta import Meta
from .secrets import SECRET_KEY, find_secret

require("gateway")

MAX_BODY_BYTES = 64 * 1024
BAD_REQUEST = Answer.text(400, "Bad Request")
"""The response of envoyproxy/ratelimit to every invalid request."""
logger = logging.getLogger("django_ratelimit_lua")


async def answer_json(meta: Meta, read_body: Callable[[], Awaitable[bytes]]) -> Answer:
    """Decide a `RateLimitRequest`, encoded as JSON.

    Args:
        meta: The `META` of the request.
        read_body: Returns the body. One that is longer than `MAX_BODY_BYTES` may be cut off after
            that. It is not called without a secret.

    Returns:
        A `RateLimitResponse` as JSON, with 200 or, if it is over a limit, with 429 and
        `Retry-After`. 400 for an invalid request; the log has the reason. 403 for a client without
        a secret.
    """
    # Only here, because `check` needs no protocol buffers.
    from .envoy import messages
    from .envoy.answer import answer
    from .envoy.question import QuestionError, read_json

    peer = meta.get("REMOTE_ADDR")
    name = find_secret(meta.get(SECRET_KEY, ""), PROTOCOL, peer)
    if name is None:
        return Answer.text(403, "A secret of this site is required.")
    try:
        body = await read_body()
        if len(body) > MAX_BODY_BYTES:
            raise QuestionError(f"the body has more than {MAX_BODY_BYTES} bytes")
        response = await answer(read_json(body))
    except QuestionError as error:
        logger.warning("The gateway refused a request with the secret %r: %s", name, error)
        return BAD_REQUEST
    headers = {header.key: header.value for header in response.response_headers_to_add}
    headers["content-type"] = "application/json"
    status = 200
    if response.overall_code == messages.OVER_LIMIT:
        status = 429
    return Answer(status, headers, messages.write_json(response))


async def answer_health() -> Answer:
    """Return 200 if Redis replies within `RATELIMIT_TIMEOUT`, otherwise 503. Counts nothing."""
    if (await ahealth()).ok:
        return Answer.text(200, "ok")
    return Answer.text(503, "Redis is unavailable; fallback policies decide.")
