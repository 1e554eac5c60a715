# SPDX-License-Identifier: Apache-2.0
"""The application of the TLS listener: five verbs for the API server and the scheduler, and 404 for all else.

Handlers take and return raw bytes, because pydantic models on this path would cost more than the decision
(docs/reference/measurements.md#serving). For the same reason a POST to a verb goes to its handler before FastAPI's
middlewares and routing, unless FastAPI makes spans of it (decision 33).
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import QueryParams
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.admission_routes import review
from app.api.bodies import ADMISSION_LIMIT, BodyReader, extender_limit
from app.api.decision_line import (
    Decision,
    RecentDecisions,
    count_refusals,
    decision_of_answer,
    decision_of_review,
    log_decision,
)
from app.api.decision_recorder import Recorder
from app.api.direct_routes import Answer, DirectRoutes, send_answer
from app.api.extender_routes import ExtenderAnswer, filter_nodes, prioritize
from app.api.operations_routes import answer_unknown_routes
from app.api.preemption import preempt
from app.api.tracing import Tracing
from app.api.wire import status_body
from app.cluster.core import Core
from app.cluster.time_slices import JobQueue
from app.schedulerconfig.write import OTHER_PODS
from app.telemetry.logs import LOGGER, event
from app.telemetry.metrics import Metrics
from app.values.errors import WireError
from app.values.quantity import parse_seconds
from app.values.reasons import Code

WAIT_SECONDS = 0.5
"""A quarter of the scheduler's httpTimeout; that a deletion arrives by then is a guess."""
SHARE_WAITED = 0.05
"""Waits for any pods take at most this share of the scheduler's time: after one of 10 ms, which is what most take, none
begins for 0.2 s, and after one in vain for 10 s. A pod with a nominated node always waits: the scheduler asks about
that node only after it has seen a victim go, so the wait is seldom in vain."""
LOOK_SECONDS = 0.01


CHANGED_BY_MIG_MANAGER = (Code.MIGReconfiguring, Code.MIGLayoutFailed)
PASSING = {Code.GPUMemoryBudgetExceeded, Code.NamespaceLimitReached, Code.DriverUpgrading, *CHANGED_BY_MIG_MANAGER}
"""Reasons that end through an event that kube-scheduler sees too, perhaps before us.

Required node affinity keeps it from asking about nodes that are being changed; if it asks, our view is behind.
"""


def may_have_ended(decision: Decision) -> bool:
    """Tell whether no node fits and at least one was refused for a reason of PASSING.

    Pods of a PodGroup never wait: a change has the whole group asked about again, and a wait would hold up the cycle.
    """
    return not decision.in_group and decision.kept == 0 and not PASSING.isdisjoint(decision.reasons)


class RetryOnChange:
    """Decides when to repeat a filter decision without a node, for reasons that may have ended already.

    Only gpu-usher counts the memory of shared GPUs (docs/reference/sharing-and-memory.md#memory-budgets) and what a
    namespace holds, and it refuses nodes that are being changed. kube-scheduler retries a pod when another pod goes or
    when a label of a node changes, often before our own watch has the event. A pod refused then waits for the
    scheduler's five-minute flush if nothing else happens in the cluster. So filter waits shortly for the watch, and
    does so seldom, because the scheduler has one loop. `clock` returns monotonic seconds.
    """

    def __init__(self, core: Core, clock: Callable[[], float] = time.monotonic) -> None:
        self._core = core
        self._clock = clock
        self._not_before = float("-inf")

    async def changes(self, decision: Decision) -> AsyncIterator[None]:
        """Yield at each change of the state, as long as waiting may help."""
        started = self._clock()
        if not may_have_ended(decision) or self._core.settings.shadow:
            return
        if not decision.nominated:
            if started < self._not_before:
                return
            self._not_before = started + WAIT_SECONDS / SHARE_WAITED
        generation = self._core.state.changes.generation
        while (waited := self._clock() - started) < WAIT_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            if self._core.state.changes.generation != generation:
                generation = self._core.state.changes.generation
                if not decision.nominated:
                    self._not_before = started + (waited + LOOK_SECONDS) / SHARE_WAITED
                yield
        if not decision.nominated:
            self._not_before = started + WAIT_SECONDS / SHARE_WAITED


RESERVE_SECONDS = 0.2
"""Reserved for the way of the answer (docs/reference/listeners.md#failures)."""


def seconds_to_answer(timeout: str | None) -> float | None:
    """Read a Go duration (`2s`, `1m30s`) less the reserve, but at least half of it; None if there is none to read."""
    total = parse_seconds(timeout)
    return None if total is None else max(total - RESERVE_SECONDS, total / 2)


Verb = Callable[..., Generator[None, None, ExtenderAnswer]]
"""Takes the body and the core, and `other_pods`."""
Request = Mapping[str, Any]
Steps = Generator[None, None, tuple[bytes, Decision, Request | None]]
"""The steps of an answer; they return its body, its decision, and the AdmissionRequest that a review has read."""
Answering = Callable[[bytes], Steps]
EXTENDER_VERBS: tuple[tuple[str, Verb], ...] = (
    ("filter", filter_nodes),
    ("prioritize", prioritize),
    ("preempt", preempt),
)
NO_DEADLINE: AbstractAsyncContextManager[object] = nullcontext()
ADMISSION_VERBS = ("mutate", "validate")


def create_tls_app(
    core: Core,
    metrics: Metrics,
    role: str = "all",
    clock: Callable[[], float] = time.perf_counter,
    recorder: Recorder | None = None,
    tracing: Tracing | None = None,
    recent: RecentDecisions | None = None,
) -> FastAPI:
    """Build the application. `role` is all, admission, extender or controller; `clock` returns monotonic seconds."""
    app = DirectRoutes(tracing)
    routes = WebhookRoutes(core, metrics, clock, recorder, tracing, recent)
    if role in ("all", "admission"):
        for verb in ADMISSION_VERBS:
            app.add_direct_route(f"/{verb}", routes.admission_route(verb))
    if role in ("all", "extender"):
        for verb, answer in EXTENDER_VERBS:
            app.add_direct_route(f"/scheduler/{verb}", routes.extender_route(verb, answer))
            others = routes.extender_route(verb, partial(answer, other_pods=True))
            app.add_direct_route(f"/scheduler/{OTHER_PODS}/{verb}", others)
    answer_unknown_routes(app)
    return app


class WebhookRoutes:
    """The handlers: turn a request into an answer, a log line, metrics and records."""

    def __init__(
        self,
        core: Core,
        metrics: Metrics,
        clock: Callable[[], float],
        recorder: Recorder | None = None,
        tracing: Tracing | None = None,
        recent: RecentDecisions | None = None,
    ) -> None:
        self._recent = recent
        self._core = core
        self._metrics = metrics
        self._clock = clock
        self._cpu = time.thread_time_ns
        self._recorder = recorder
        self._tracing = tracing
        self._bodies = BodyReader()
        self._retries = RetryOnChange(core)
        self._queues = {verb: JobQueue(f"long answers of {verb}") for verb in (*ADMISSION_VERBS, *dict(EXTENDER_VERBS))}

    def admission_route(self, verb: str) -> ASGIApp:

        def answer(body: bytes) -> Steps:
            reviewed = yield from review(body, verb, self._core)
            decision = decision_of_review(reviewed, self._core)
            self._metrics.policies_matched(decision.policies, decision.result)
            return reviewed.body, decision, reviewed.request

        return Endpoint(self, verb, lambda: ADMISSION_LIMIT, answer)

    def extender_route(self, verb: str, verb_answer: Verb) -> ASGIApp:

        def answer(body: bytes) -> Steps:
            extender_answer = yield from verb_answer(body, self._core)
            self._metrics.view_behind.inc(extender_answer.behind)
            if verb == "preempt":
                self._metrics.evictions_prevented.inc(extender_answer.asked - extender_answer.kept)
            return extender_answer.body, decision_of_answer(extender_answer, self._core), None

        return Endpoint(self, verb, lambda: extender_limit(len(self._core.nodes)), answer)

    async def respond(
        self, verb: str, limit: Callable[[], int], answer: Answering, scope: Scope, receive: Receive
    ) -> Answer:
        """Answer a request for a verb, count it, and measure the time; every error becomes an answer."""
        started = self._clock()
        query = scope["query_string"]
        patience = seconds_to_answer(QueryParams(query).get("timeout")) if query else None
        try:
            deadline = asyncio.timeout(patience) if patience is not None else NO_DEADLINE
            async with deadline, self._bodies.read(scope, receive, limit) as body:
                content, outcome = await self._decide(verb, answer, body)
            if patience is not None and self._clock() - started > patience:
                raise TimeoutError
            response = Answer(content)
        except WireError as error:
            response, outcome = self._refuse(verb, error)
        except TimeoutError:
            response, outcome = self._too_late(verb)
        except Exception:  # noqa: BLE001  # a bug becomes a 500, and failurePolicy decides
            response, outcome = self._fail(verb)
        self._metrics.request_answered(verb, outcome, self._clock() - started)
        return response

    async def _decide(self, verb: str, answer: Answering, body: bytes) -> tuple[bytes, str]:
        """Decide, then count, log and record the decision; return the answer and the outcome for the metric."""
        content, decision, request, spent = await self._run_steps(verb, answer(body))
        if verb in ADMISSION_VERBS and Code.ClaimNotKnown in decision.reasons:
            until = self._clock() + WAIT_SECONDS  # that a claim of the same manifest has not been seen yet is likely
            while Code.ClaimNotKnown in decision.reasons and self._clock() < until:
                await asyncio.sleep(WAIT_SECONDS / 5)
                content, decision, request, more = await self._run_steps(verb, answer(body))
                spent += more
        if verb == "filter" and may_have_ended(decision):
            async for _ in self._retries.changes(decision):
                content, decision, request, more = await self._run_steps(verb, answer(body))
                spent += more
                if not may_have_ended(decision):
                    break
        count_refusals(verb, decision, self._metrics)
        log_decision(verb, decision, self._core.state.changes.generation, spent)
        if self._recent is not None and decision.made_here:
            self._recent.note(verb, decision, spent)
        if self._recorder is not None and decision.made_here:
            self._recorder.note(verb, request or body, content, decision, self._core.state.changes.generation)
        if self._tracing is not None:
            self._tracing.note(verb, decision)
        return content, decision.outcome

    async def _run_steps(self, verb: str, steps: Steps) -> tuple[bytes, Decision, Request | None, int]:
        """Run the steps of an answer; return its results and the CPU time in ns.

        Only one long answer of a verb runs at a time.

        Raises TooManyJobs and JobTimeout.
        """
        started = self._cpu()
        try:
            next(steps)
        except StopIteration as end:
            return *end.value, self._cpu() - started
        spent = self._cpu() - started
        async with self._queues[verb].turn():
            while True:
                await asyncio.sleep(0)
                started = self._cpu()
                try:
                    next(steps)
                except StopIteration as end:
                    return *end.value, spent + self._cpu() - started
                spent += self._cpu() - started

    def _refuse(self, verb: str, error: WireError) -> tuple[Answer, str]:
        too_large = error.status == 413
        if too_large:
            self._metrics.oversized.labels(verb).inc()
        event(f"{verb} not answered", logging.WARNING, status=error.status, error=str(error))
        return Answer(status_body(error.status, str(error)), error.status, too_large), f"http_{error.status}"

    def _too_late(self, verb: str) -> tuple[Answer, str]:
        """Answer after the caller's timeout: the API server has given up or will; failurePolicy decides."""
        self._metrics.internal_errors.labels("deadline").inc()
        event(f"{verb} not answered in time", logging.ERROR)
        return Answer(
            status_body(503, f"gpu-usher: {verb} did not finish before the caller's timeout"), 503
        ), "http_503"

    def _fail(self, verb: str) -> tuple[Answer, str]:
        self._metrics.internal_errors.labels(verb).inc()
        LOGGER.exception("%s failed", verb)
        return Answer(status_body(500, f"gpu-usher: {verb} failed, see its log"), 500), "http_500"


class Endpoint:
    """The ASGI application of one verb. `limit` returns the most bytes of a body at the time of a request."""

    def __init__(self, routes: WebhookRoutes, verb: str, limit: Callable[[], int], answer: Answering) -> None:
        self._routes, self._verb, self._limit, self._answer = routes, verb, limit, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._routes.respond(self._verb, self._limit, self._answer, scope, receive)
        await send_answer(answer, scope, send)
