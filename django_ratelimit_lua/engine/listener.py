"""Receives the changes that other processes make, and drops the state that they invalidate.

Publishing rules and resetting a count also send a message on a channel. One listener in each
process receives it within milliseconds, checks whether the rules are still current, and drops
cached decisions by old rules, and refusals and leases of reset identities. The next request loads
the new rules. Without a request, the listener loads them within half a second, at a random moment,
because all processes receive the message at once. It also checks twice a second, because a message
may be lost: on a broken or silent connection, or if the Redis user may not use channels. A message
is only a reason to check, so a forged one allows nothing.

If the listener cannot run, or Redis is unavailable, decisions check for themselves
(`rules/status.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from ..conf import conf, on_change
from ..exceptions import StoreError
from ..extension import extensions
from ..process import Clock
from ..process.forks import chance, renew_after_fork
from ..process.tasks import Task
from ..rules import provider
from ..store import ANNEX, RESET, RULES, Deadline, Subscription, get_store
from .deny_cache import deny_cache
from .leases import leases

logger = logging.getLogger("django_ratelimit_lua")

CHECK_SECONDS = 0.5
"""Seconds between two checks whether the rules are current: twice as often as they may be old."""
NEWS_SECONDS = 0.005
"""Seconds between two checks for unread messages by threads that decide from memory: as long as
Python lets a thread run while others wait. The listener may have to wait for all of them.
"""
MIN_LENGTH = 0.01
"""Seconds between two of these checks, however many messages come."""
NEVER = float("inf")
SPREAD_SECONDS = 0.5
"""Maximum number of seconds until a process without requests loads new rules."""
CONNECT_SECONDS = 1.0
FIRST_PAUSE = 0.25
MAX_PAUSE = 5.0
"""Seconds until the next try to connect: twice as long after each, and a quarter more or less by
chance.
"""


class Listener:
    """The listener of this process."""

    _subscription: Subscription | None = None

    def __init__(self) -> None:
        self._begin()
        self.task = Task(
            "listener",
            self._step,
            wake=self.reconnect,
            at_stop=self._begin,
            meanwhile="requests check once a second whether rules have changed",
        )
        renew_after_fork(self._begin)

    def _begin(self) -> None:
        """Set the state of a listener that has not been started, in this process."""
        # A child has connections of its own, and closes its copy of this one. To let go of it is
        # not enough: in the child, the frames of its parent's thread hold it for good.
        if self._subscription is not None:
            self._subscription.close()
        self._subscription = None
        self._connect_at = self._check_at = self._checked_at = self._connected_at = float("-inf")
        self._news_checked_at = float("-inf")
        self._load_at = NEVER
        self._pause = FIRST_PAUSE
        self._is_polling = False
        """Whether the log has reported that the channel is unavailable."""
        self._is_renewed = False
        """Whether settings have changed since it connected."""
        self._is_outdated = False
        """Whether a message was received that the rules in force may be outdated."""
        self._has_news = False
        """Whether a message has arrived that is still unread."""
        self.error = ""
        """Why it receives nothing at the moment. Empty if it does, or was not started."""

    @property
    def is_listening(self) -> bool:
        """Return whether changes are received as soon as they are made."""
        return self._subscription is not None

    def check_for_news(self) -> bool:
        """Look for a message that has arrived and is unread, and return whether there is one.

        Until the listener's thread has read the message, cached decisions are not used. The check
        costs one reading of the clock, and a system call every `NEWS_SECONDS`.
        """
        subscription = self._subscription
        if subscription is None:
            return False
        if not self._has_news and Clock.monotonic() >= self._news_checked_at + NEWS_SECONDS:
            self._news_checked_at = Clock.monotonic()
            self._has_news = subscription.has_news()
        return self._has_news

    def wait_until_listening(self, seconds: float) -> bool:
        """Start the listener, and wait until it listens or has failed, for at most `seconds`.

        Return whether it listens.
        """
        self.task.start()
        end = Clock.monotonic() + seconds
        while Clock.monotonic() < end:
            if self.is_listening or self.error or not self.task.is_running:
                break
            time.sleep(MIN_LENGTH)
        return self.is_listening

    def reconnect(self) -> None:
        """Connect again, because settings may name another server or another channel."""
        # Read first: a connection that is made after the flag is set uses the new settings.
        subscription = self._subscription
        self._is_renewed = True
        if subscription is not None:
            subscription.hang_up()

    def _step(self) -> float:
        """Connect and check if that is due, then receive messages. Return the seconds to pause."""
        self._connect_if_due()
        if Clock.monotonic() >= self._check_at:
            self._check_rules()
        now = Clock.monotonic()
        if self._subscription is None:
            return max(min(self._check_at, self._connect_at) - now, MIN_LENGTH)
        try:
            messages = self._subscription.receive(self._check_at - now)
            self._handle(self._subscription, messages)
        except StoreError as error:
            if not self._is_renewed:  # Otherwise `reconnect` has ended the connection.
                self._record_loss(error)
        return 0.0

    def _connect_if_due(self) -> None:
        """Connect, if there is no connection, or if settings have changed."""
        is_renewed = self._is_renewed
        self._is_renewed = False  # Before the settings are read.
        channel = get_store(background=True).channel(conf.CACHE_PREFIX)
        if self._subscription is not None and (is_renewed or self._subscription.channel != channel):
            self._subscription.close()
            self._subscription = None
            self._connect_at = float("-inf")
        if self._subscription is None and Clock.monotonic() >= self._connect_at:
            self._connect(channel)

    def _connect(self, channel: bytes) -> None:
        """Connect to a channel, and check at once: earlier messages may be lost."""
        try:
            self._subscription = Subscription(channel, Deadline(CONNECT_SECONDS))
        except StoreError as error:
            self._record_loss(error)
            return
        self._connected_at = Clock.monotonic()
        self.error = ""
        self._has_news = False
        deny_cache.clear()
        self._check_at = float("-inf")

    def _record_loss(self, error: StoreError) -> None:
        """Poll from now on, and try to connect again after a pause."""
        if not self.task.is_running:  # It is being stopped.
            return
        if not self._is_polling:
            logger.info(
                "The channel for changed rules is unavailable; rules are polled twice a second: %s",
                error,
            )
        self._is_polling = True
        self._subscription = None
        self.error = str(error)
        self._connect_at = Clock.monotonic() + self._pause * chance.uniform(0.75, 1.25)
        self._pause = min(self._pause * 2, MAX_PAUSE)

    def _check_rules(self) -> None:
        """Compare the rules in force with the published ones, and load those when it is time.

        Set when to compare again, and when to load rules that are not loaded yet.
        """
        now = Clock.monotonic()
        self._checked_at = now
        self._check_at = now + CHECK_SECONDS
        self._report_recovery(now)
        try:
            is_current = provider.compare_with_published(loads=now >= self._load_at)
        # Until then decisions check by themselves, and report the problem.
        except Exception as error:
            logger.debug("The revision of the rules cannot be read: %s", error)
            return
        self._is_outdated = False
        if is_current:
            self._load_at = NEVER
        elif self._load_at <= now or self._load_at == NEVER:
            self._load_at = now + chance.uniform(0.0, SPREAD_SECONDS)
        self._check_at = min(self._check_at, self._load_at)

    def _report_recovery(self, now: float) -> None:
        """Log that the channel is available again, after it was for a while."""
        if not self._is_polling or self._subscription is None:
            return
        if now - self._connected_at >= MAX_PAUSE:
            self._pause = FIRST_PAUSE
            self._is_polling = False
            logger.warning("The channel for changed rules is available again")

    def _handle(self, subscription: Subscription, messages: Iterable[bytes]) -> None:
        """Drop what these messages invalidate."""
        reset: set[bytes] = set()
        words_by_annex: dict[bytes, set[bytes]] = {}
        ruleset = provider.loaded_ruleset()
        revision = b"" if ruleset is None else ruleset.published.text
        current = RULES + b" " + revision
        for message in messages:
            kind, *words = message.split(b" ")
            if kind == RESET:
                reset.update(words)
            elif kind == ANNEX and words:
                words_by_annex.setdefault(words[0], set()).update(words[1:])
            elif message != current:  # Other rules, or a message of another version.
                self._doubt_rules()
                if kind != RULES:
                    deny_cache.clear()
        if reset:
            leases.drop(reset)
            deny_cache.forget(reset)
        for extension in extensions:
            if extension.name.encode() in words_by_annex:
                extension.on_message(words_by_annex[extension.name.encode()])
        self._has_news = False
        if not self._is_outdated:  # All messages are handled.
            deny_cache.received_at = subscription.received_at

    def _doubt_rules(self) -> None:
        """Use the rules only after a comparison, and compare them as soon as possible."""
        # At once, because the comparison may have to wait until other threads have run.
        if not self._is_outdated:
            provider.mark_stale()
        self._is_outdated = True
        self._check_at = min(self._check_at, self._checked_at + MIN_LENGTH)


listener = Listener()

on_change(("RATELIMIT_*", "CACHES"), listener.reconnect)
