# SPDX-License-Identifier: Apache-2.0
"""What others report: the conditions of nodes that tell of a fault of their GPUs, and why a kubelet failed a pod.

Both tables say what each report means and what to do (node_conditions.yaml, pod_failures.yaml).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from app.knowledge.dcgm import GPUCondition

STATUSES = frozenset({"True", "False", "Unknown"})
"""The statuses of a condition (k8s.io/api core/v1 ConditionStatus)."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """What a condition says where it tells of the monitor rather than of the GPUs (node_conditions.yaml, doubts)."""

    reason: str
    parts: tuple[str, ...]
    meaning: str
    remedy: str

    def explains(self, reason: str, message: str) -> bool:
        """Tell whether nothing else is reported: each fault of the message, which publishers join by ; has a text."""
        faults = filter(None, map(str.strip, message.split(";")))
        return reason == self.reason and all(any(part in fault for part in self.parts) for fault in faults)


@dataclass(frozen=True, slots=True)
class ConditionMeaning:
    """One row of node_conditions.yaml, with the remedy of its publisher; `bad` are the statuses that report a fault.

    `publisher` is empty where the meaning is guessed from the name.
    """

    name: str
    publisher: str
    bad: frozenset[str]
    severity: GPUCondition
    meaning: str
    remedy: str
    doubts: tuple[Doubt, ...]


@dataclass(frozen=True, slots=True)
class ConditionGuess:
    """What the name of a condition says that no row names: a regular expression, and the statuses that are a fault."""

    names: str
    bad: frozenset[str]


@lru_cache(maxsize=1024)
def guessed_meaning(kind: str, guesses: tuple[ConditionGuess, ...]) -> ConditionMeaning | None:
    """Guess what a condition means that no row names; None for one whose name tells of no GPU, or of no fault."""
    guess = next((one for one in guesses if re.fullmatch(one.names, kind.lower())), None)
    if guess is None:
        return None
    meaning = "probably a GPU fault, to judge by its name"
    remedy = "find out what sets it, and add it with its meaning to your own node_conditions.yaml"
    return ConditionMeaning(kind, "", guess.bad, GPUCondition.Ailing, meaning, remedy, ())


def load_condition_guesses(document: Mapping[str, Any]) -> tuple[ConditionGuess, ...]:
    """Read the guesses of node_conditions.yaml, in the order in which they are tried."""
    return tuple(ConditionGuess(row["names"], frozenset(row["bad"])) for row in document["guesses"])


def load_node_conditions(document: Mapping[str, Any]) -> Mapping[str, ConditionMeaning]:
    """Read node_conditions.yaml, by the type of the condition.

    Raises ValueError for a status that no condition has, and KeyError for a publisher that is not listed.
    """
    remedies = {row["name"]: row["remedy"] for row in document["publishers"]}
    rows = [
        ConditionMeaning(
            name=row["name"],
            publisher=row["publisher"],
            bad=frozenset(row["bad"]),
            severity=GPUCondition(row["severity"]),
            meaning=row["meaning"],
            remedy=remedies[row["publisher"]],
            doubts=tuple(
                Doubt(doubt["reason"], tuple(doubt["parts"]), doubt["meaning"], doubt["remedy"])
                for doubt in row.get("doubts", ())
            ),
        )
        for row in document["conditions"]
    ]
    for row in rows:
        if not row.bad or row.bad - STATUSES:
            raise ValueError(f"{row.name}: bad: got {sorted(map(str, row.bad))}, wants some of {sorted(STATUSES)}")
    return {row.name: row for row in rows}


@dataclass(frozen=True, slots=True)
class PodFailure:
    """One row of pod_failures.yaml, whose comment explains the fields."""

    reason: str
    message: str
    refused: bool
    chosen: bool
    why: str
    causes: str
    remedy: str
    one_unit: bool = False
    on_node: bool = False

    def explains(self, reason: str, message: str) -> bool:
        """Tell whether this row is about a pod with this reason and message."""
        same = reason.startswith(self.reason) if self.reason else not reason
        return same and self.message in message

    def explains_start(self, reason: str, message: str) -> bool:
        """Tell whether this row is about a container that does not start: a row without a reason, whatever that is."""
        return self.explains(reason, message) or (not self.reason and self.message in message)


def load_pod_failures(rows: Iterable[Mapping[str, Any]]) -> tuple[PodFailure, ...]:
    """Read the `pod_failures` of pod_failures.yaml, of which the first that explains a pod counts."""
    return tuple(
        PodFailure(
            reason=row["reason"],
            message=row.get("message", ""),
            refused=row["refused"],
            chosen=row.get("chosen", False),
            why=row["why"],
            causes=row.get("causes", ""),
            remedy=row["remedy"],
            one_unit=row.get("one_unit", False),
            on_node=row.get("on_node", False),
        )
        for row in rows
    )


class SchedulerFinding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wrong with a field of a KubeSchedulerConfiguration that is none of `wants`, or by `check`."""

    of: Literal["extender", "gpu-pods", "other-pods", "profile", "file"]
    field: str
    message: str
    remedy: str
    severity: Literal["danger", "warning"] = "danger"
    wants: tuple[Any, ...] = ()
    check: str = ""
