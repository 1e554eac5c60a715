# SPDX-License-Identifier: Apache-2.0
"""The body of /readyz: asked of the event loop that holds the state, or the last answer if that loop is busy."""

from collections.abc import Awaitable, Callable
from typing import Any

from app.api.backend import Backend

Health = dict[str, Any]
Ask = Callable[[Callable[[], Health]], Awaitable[Health]]
"""Calls a function on the event loop that holds the state. Raises TimeoutError if that loop is busy too long."""


async def call_here(call: Callable[[], Health]) -> Health:
    """Call at once: the state is on this event loop."""
    return call()


class Readiness:
    """Returns the body of /readyz, and keeps the last one. `was_ready` is whether the service was ever ready."""

    def __init__(self, backend: Backend, ask: Ask = call_here) -> None:
        self._backend, self._ask = backend, ask
        self._last: Health = {"ready": False}
        self.was_ready = False

    async def health(self) -> Health:
        """Ask for the health. On a timeout the last answer holds, if the heartbeat is recent and no end has begun."""
        try:
            self._last = await self._ask(self._backend.health)
        except TimeoutError:
            draining = self._backend.draining
            ready = self._last["ready"] and not draining and self._backend.alive()
            return {**self._last, "ready": ready, "draining": draining, "busy": True}
        self.was_ready = self.was_ready or self._last["ready"]
        return self._last
