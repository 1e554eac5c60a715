# SPDX-License-Identifier: Apache-2.0
"""What /readyz says: asked of the loop that has the service's state, and what it said last where that loop is busy."""

from collections.abc import Awaitable, Callable
from typing import Any

from app.api.backend import Backend

Health = dict[str, Any]
Ask = Callable[[Callable[[], Health]], Awaitable[Health]]
"""Calls a function where the state is. Raises TimeoutError if nobody comes to it in time."""


async def here(call: Callable[[], Health]) -> Health:
    """Call at once: the state is this loop's."""
    return call()


class Readiness:
    """Gives the body of /readyz, and remembers the last one."""

    def __init__(self, backend: Backend, ask: Ask = here) -> None:
        self._backend, self._ask = backend, ask
        self._last: Health = {"ready": False}
        self.ever = False

    async def now(self) -> Health:
        """Ask; where nobody answers in time the last answer holds while the heart beats and we are not ending."""
        try:
            self._last = await self._ask(self._backend.health)
        except TimeoutError:
            draining = self._backend.draining
            ready = self._last["ready"] and not draining and self._backend.alive()
            return {**self._last, "ready": ready, "draining": draining, "busy": True}
        self.ever = self.ever or self._last["ready"]
        return self._last
