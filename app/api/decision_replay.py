# SPDX-License-Identifier: Apache-2.0
"""Replays a decision log: each recorded request is decided again by the code that answers requests."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.admission.reviewed_pod import PodForm, ReviewContext
from app.api.admission_routes import REVIEWS
from app.api.decision_recorder import VERSION
from app.api.extender_routes import filter_nodes, prioritize
from app.api.preemption import preempt
from app.api.wire import encode
from app.cluster.core import Core
from app.values.computations import finish
from app.values.errors import BadInput, WireError

EXTENDER_FUNCTIONS = {"filter": filter_nodes, "prioritize": prioritize, "preempt": preempt}
"""The functions that decide kube-scheduler's requests, by the member `verb` of a line."""
DECISION_MEMBERS = ("decision", "reasons", "actions", "answer")
"""Members of a line that record the decision; `answer` is a SHA-256 of the answer's bytes."""
NODES_MEMBER = {"filter": "nodes", "prioritize": "nodes", "preempt": "victims"}

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DifferingDecision:
    """A line whose decision differs. `line` is its number, from 1; `was` and `now` are its DECISION_MEMBERS."""

    line: int
    verb: str
    pod: str
    uid: str
    was: Mapping[str, Any]
    now: Mapping[str, Any]


def read_lines(file: str, text: Iterable[str]) -> Iterator[Line]:
    """Read the lines of a decision log.

    Raises BadInput with the number of the line.
    """
    for number, row in enumerate(text, 1):
        try:
            line = msgspec.json.decode(row)
        except msgspec.DecodeError as error:
            raise BadInput(f"{file}:{number}: not JSON: {error}: wants a file of serve --decision-log") from error
        if problem := _problem(line):
            raise BadInput(f"{file}:{number}: {problem}: wants a line of serve --decision-log")
        yield line


def _problem(line: Any) -> str | None:
    """Return why this is not a line of a decision log; None if it is one."""
    if not isinstance(line, dict) or line.get("v") != VERSION:
        return f"no line of version {VERSION}"
    verb = str(line.get("verb"))
    if verb not in REVIEWS and verb not in EXTENDER_FUNCTIONS:
        return f"verb {verb[:40]!r}"
    kinds = (
        {"namespace": str, "form": str}
        if verb in REVIEWS
        else {NODES_MEMBER[verb]: list if verb != "preempt" else dict}
    )
    for key, kind in {**kinds, "pod": dict, "decision": str, "reasons": dict, "actions": list, "answer": str}.items():
        if not isinstance(line.get(key), kind):
            return f"no {key}"
    return "no such form" if verb in REVIEWS and line["form"] not in PodForm.__members__ else None


def replay_decisions(lines: Iterable[Line], core: Core) -> Iterator[DifferingDecision | None]:
    """Decide each line again, in the order of the log, because promises depend on it; None for an equal decision.

    The answers to requests with whole nodes are not compared, because such nodes are recorded by name only.
    """
    for number, line in enumerate(lines, 1):
        was = {key: line[key] for key in DECISION_MEMBERS}
        now = decide_again(line, core)
        if line.get("whole_nodes"):
            now["answer"] = was["answer"]
        yield (
            None
            if was == now
            else DifferingDecision(number, line["verb"], _name(line), str(line.get("uid", "")), was, now)
        )


def _name(line: Line) -> str:
    metadata = line["pod"].get("metadata") or {}
    namespace = line.get("namespace") or metadata.get("namespace") or "default"
    return f"{namespace}/{metadata.get('name') or metadata.get('generateName') or ''}"


def decide_again(line: Line, core: Core) -> dict[str, Any]:
    """Decide the request of a line again and return its DECISION_MEMBERS.

    Raises MalformedPod, QuantityError, WireError for a pod that cannot have been recorded.
    """
    return _review_again(line, core) if line["verb"] in REVIEWS else _answer_again(line, core)


def _review_again(line: Line, core: Core) -> dict[str, Any]:
    context = replace(
        ReviewContext(core.world()),
        form=PodForm[line["form"]],
        existing_ephemeral=frozenset(line.get("settled", ())),
        old_template=line.get("before"),
    )
    namespace = line["namespace"]
    result = REVIEWS[line["verb"]](line["pod"], namespace, core.namespace_labels(namespace), context)
    outcome = "patched" if result.operations else "allowed" if result.concerned else "unconcerned"
    return {
        "decision": outcome if result.allowed else "denied",
        "reasons": {reason.code.name: 1 for reason in result.reasons},
        "actions": list(result.record),
        "answer": "",
    }


def _answer_again(line: Line, core: Core) -> dict[str, Any]:
    args = {"Pod": line["pod"]}
    args |= {"NodeNameToMetaVictims": line["victims"]} if "victims" in line else {"NodeNames": line["nodes"]}
    try:
        answer = finish(EXTENDER_FUNCTIONS[line["verb"]](encode(args), core))
    except WireError as error:
        return {"decision": "error", "reasons": {}, "actions": [str(error)], "answer": ""}
    outcome = "none_fits" if answer.asked and not answer.kept else "answered"
    return {
        "decision": "error" if answer.error else outcome,
        "reasons": {code.name: count for code, count in Counter(answer.refused).items()},
        "actions": [],
        "answer": hashlib.sha256(answer.body).hexdigest(),
    }
