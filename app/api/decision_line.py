# SPDX-License-Identifier: Apache-2.0
"""The log line and the counts of a decision, and the ring of recent decisions that the web page shows.

A line always has the same members. It holds names, codes and counts, but no environment values, no
annotations and no whole objects.
"""

import logging
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from app.admission.review import MOST_ACTIONS
from app.api.admission_routes import Reviewed
from app.api.extender_routes import ExtenderAnswer
from app.cluster.core import Core
from app.telemetry.logs import LOGGER, event
from app.telemetry.metrics import Metrics
from app.values.reasons import Code


@dataclass(frozen=True, slots=True)
class Decision:
    """One decision of a verb.

    `reasons` is the number of refused objects (nodes, or the one pod) by reason code. `level` is DEBUG if nothing was
    changed or refused. `nominated` is whether preemption has nominated a node for the pod, `in_group` whether
    kube-scheduler places it with its PodGroup. `made_here` is false for an answer that leaves the decision to another
    one; it is neither shown nor recorded.
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
    in_group: bool = False
    error: str | None = None
    dry_run: bool = False
    warned: bool = False
    made_here: bool = True

    @property
    def result(self) -> str:
        """The result for the policies that matched the pod: the outcome, or `warned`."""
        return "warned" if self.warned and self.outcome == "allowed" else self.outcome


def decision_of_review(reviewed: Reviewed, core: Core) -> Decision:
    result = reviewed.result
    if not result.concerned and result.allowed:
        outcome = "unconcerned" if reviewed.handled else "unhandled"
    elif not result.allowed:
        outcome = "denied"
    else:
        outcome = "patched" if result.operations else "allowed"
    silent = not (result.reasons or result.operations or result.warnings)
    return Decision(
        outcome,
        logging.DEBUG if silent else logging.INFO,
        reviewed.uid,
        reviewed.namespace,
        reviewed.name,
        dict.fromkeys((reason.code for reason in result.reasons), 1),
        result.policies,
        result.policy_hash or core.policies.hash,
        result.record,
        dry_run=reviewed.dry_run,
        warned=bool(result.warnings),
    )


def decision_of_answer(answer: ExtenderAnswer, core: Core) -> Decision:
    """Return the decision of an extender verb; policies are looked up only if the line is written."""
    level = logging.INFO if answer.refused or answer.error else logging.DEBUG  # all nodes fit: nothing to explain
    outcome = "none_fits" if answer.asked and not answer.kept else "answered"
    pod = answer.pod
    written = pod is not None and LOGGER.isEnabledFor(level)
    return Decision(
        "error" if answer.error else outcome,
        level,
        pod.uid if pod else "",
        pod.namespace if pod else "",
        pod.name if pod else "",
        answer.refused,
        core.world().ruling(pod).policies if pod and written else (),
        core.policies.hash,
        asked=answer.asked,
        kept=answer.kept,
        nominated=bool(pod and pod.nominated_node_name),
        in_group=bool(pod and pod.pod_group),
        error=answer.error,
        made_here=answer.decided,
    )


def count_refusals(verb: str, decision: Decision, metrics: Metrics) -> None:
    """Count the refused objects of a decision by reason."""
    for code, number in decision.reasons.items():
        metrics.refusals.labels(verb, code.name).inc(number)


def log_decision(verb: str, decision: Decision, generation: int, cpu_ns: int) -> None:
    """Write the log line of a decision. `cpu_ns` is the thread's CPU time from the read body to the answer."""
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


MOST_DECISIONS = 500
"""Decisions in the ring; one is under 1 kB. More of a live list cannot be read."""


@dataclass(frozen=True, slots=True)
class RecentDecision:
    """One decision. `seconds` is Unix time, `cpu_ns` the CPU time of the answer."""

    seconds: float
    verb: str
    decision: Decision
    cpu_ns: int


class RecentDecisions:
    """The recent decisions. `total` is their number since the start."""

    def __init__(self) -> None:
        self.total = 0
        self._ring: deque[tuple[float, str, Decision, int]] = deque(maxlen=MOST_DECISIONS)

    def note(self, verb: str, decision: Decision, cpu_ns: int) -> None:
        self.total += 1
        if len(decision.actions) > MOST_ACTIONS:
            more = f"and {len(decision.actions) - MOST_ACTIONS + 1} more"
            decision = replace(decision, actions=(*decision.actions[: MOST_ACTIONS - 1], more))
        self._ring.append((time.time(), verb, decision, cpu_ns))

    def kept(self) -> list[RecentDecision]:
        """Return the newest MOST_DECISIONS decisions, the oldest first."""
        return [RecentDecision(*entry) for entry in self._ring]
