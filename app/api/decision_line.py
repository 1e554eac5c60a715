# SPDX-License-Identifier: Apache-2.0
"""Decisions, said: one log line and the counts of each answer, always with the same fields (LOG-01).

No environment values, no annotations, no whole objects: names, codes and counts.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from app.api.admission_routes import Reviewed
from app.api.backend import Backend
from app.api.extender_routes import ExtenderAnswer
from app.telemetry.logs import LOGGER, event
from app.telemetry.metrics import Metrics
from app.values.reasons import Code


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided. `reasons`: how many objects (nodes, or the one pod) were refused, by code.

    `level`: how loud the line is; DEBUG where nothing was changed or refused (LOG-02). `nominated`: preemption has made
    room for the pod on some node.
    """

    outcome: str
    level: int = logging.INFO
    uid: str = ""
    namespace: str = ""
    pod: str = ""
    reasons: Mapping[Code, int] = field(default_factory=dict)
    policies: tuple[str, ...] = ()
    policy_hash: str = ""
    actions: tuple[str, ...] = ()
    asked: int = 0
    kept: int = 0
    nominated: bool = False
    error: str | None = None
    dry_run: bool = False
    warned: bool = False

    @property
    def result(self) -> str:
        """Name what became of the pod, for the policies that matched it."""
        return "warned" if self.warned and self.outcome == "allowed" else self.outcome


def of_review(reviewed: Reviewed, backend: Backend) -> Decision:
    """Say what a review decided."""
    verdict = reviewed.verdict
    if not verdict.concerned and verdict.allowed:
        outcome = "unconcerned" if reviewed.handled else "unhandled"
    elif not verdict.allowed:
        outcome = "denied"
    else:
        outcome = "patched" if verdict.operations else "allowed"
    silent = not (verdict.reasons or verdict.operations or verdict.warnings)
    return Decision(
        outcome,
        logging.DEBUG if silent else logging.INFO,
        reviewed.uid,
        reviewed.namespace,
        reviewed.name,
        dict.fromkeys((each.code for each in verdict.reasons), 1),
        verdict.policies,
        verdict.policy_hash or backend.policies.hash,
        verdict.record,
        dry_run=reviewed.dry_run,
        warned=bool(verdict.warnings),
    )


def of_answer(answered: ExtenderAnswer, backend: Backend) -> Decision:
    """Say what an extender verb decided; the policies are looked up only for a line that is written."""
    level = logging.INFO if answered.refused or answered.error else logging.DEBUG  # all fit: nothing to explain
    outcome = "none_fits" if answered.asked and not answered.kept else "answered"
    pod = answered.pod
    written = pod is not None and LOGGER.isEnabledFor(level)
    return Decision(
        "error" if answered.error else outcome,
        level,
        pod.uid if pod else "",
        pod.namespace if pod else "",
        pod.name if pod else "",
        answered.refused,
        backend.ruling(pod).policies if pod and written else (),
        backend.policies.hash,
        asked=answered.asked,
        kept=answered.kept,
        nominated=bool(pod and pod.nominated_node_name),
        error=answered.error,
    )


def count(verb: str, decision: Decision, metrics: Metrics) -> None:
    """Count a decision by reason."""
    for code, number in decision.reasons.items():
        metrics.refusals.labels(verb, code.name).inc(number)


def say(verb: str, decision: Decision, generation: int, cpu_ns: int) -> None:
    """Write the line of a decision. `cpu_ns`: of this thread, from the body read to the answer made."""
    if not LOGGER.isEnabledFor(decision.level):
        return
    fields: dict[str, Any] = {
        "uid": decision.uid,
        "namespace": decision.namespace,
        "pod": decision.pod,
        "decision": decision.outcome,
        "reasons": {code.name: number for code, number in decision.reasons.items()},
        "actions": list(decision.actions),
        "asked": decision.asked,
        "kept": decision.kept,
        "error": decision.error,
        "policies": list(decision.policies),
        "policy_hash": decision.policy_hash[:12],
        "generation": generation,
        "dry_run": decision.dry_run,
        "duration_ms": round(cpu_ns / 1e6, 3),
    }
    event(verb, decision.level, **fields)
