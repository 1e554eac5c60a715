# SPDX-License-Identifier: Apache-2.0
"""The validator of idle GPUs: it warns or refuses pods of namespaces that hold idle GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass

from app.admission.reviewed_pod import ReviewedPod
from app.policy.schema_admission import Idle
from app.values.durations import parse_seconds
from app.values.reasons import Code, Reason, counted, reason

DEFAULT_AFTER, DEFAULT_BELOW, DEFAULT_GPUS = "4h", 1.0, 1


@dataclass(frozen=True, slots=True)
class IdleLimit:
    """The rule with its defaults: `gpus` that were idle for `seconds`, with an activity of at most `below` (of one)."""

    after: str
    seconds: float
    below: float
    gpus: int


def idle_limit(idle: Idle) -> IdleLimit:
    """Fill in what a policy leaves out."""
    after = idle.after or DEFAULT_AFTER
    below = DEFAULT_BELOW if idle.below is None else idle.below
    return IdleLimit(after, parse_seconds(after) or 0.0, below / 100, idle.gpus or DEFAULT_GPUS)


def no_idle_gpus(review: ReviewedPod) -> Iterator[Reason]:
    """Refuse a pod whose namespace holds too many idle GPUs."""
    if review.rules.idle is None:
        return
    limit = idle_limit(review.rules.idle)
    idle = review.context.idle_gpus(review.pod.namespace, limit.seconds, limit.below)
    if idle >= limit.gpus:
        have = "has" if idle == 1 else "have"
        held = f"the namespace holds {counted(idle, 'GPU')} that {have} been idle for {limit.after}"
        allowed = f"fewer than {limit.gpus} may be{review.rules.by('idle')}" if limit.gpus > 1 else "none may be"
        by = "" if limit.gpus > 1 else review.rules.by("idle")
        yield reason(Code.IdleGPUsHeld, f"{held}; {allowed}{by}")
