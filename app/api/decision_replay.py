# SPDX-License-Identifier: Apache-2.0
"""Replaying the decision log: what a line is about is asked again, by the same code that answers requests (F94)."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from app.admission.reviewed_pod import PodForm
from app.api.admission_routes import REVIEWS
from app.api.backend import Backend
from app.api.decision_recorder import VERSION
from app.api.extender_routes import filter_nodes, preempt, prioritize
from app.api.wire import encode
from app.values.errors import BadInput, WireError

VERBS = {"filter": filter_nodes, "prioritize": prioritize, "preempt": preempt}
DECIDED = ("decision", "reasons", "actions", "answer")
"""Members of a line that say what was decided; `answer` is a hash of the bytes."""
ASKED = {"filter": "nodes", "prioritize": "nodes", "preempt": "victims"}

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DifferingDecision:
    """A line that decides otherwise. `line`: its number, from 1; `was`, `now`: its members of DECIDED."""

    line: int
    verb: str
    pod: str
    uid: str
    was: Mapping[str, Any]
    now: Mapping[str, Any]


def read_lines(file: str, text: Iterable[str]) -> Iterator[Line]:
    """Read a decision log, line by line.

    Raises BadInput, with the line's number.
    """
    for number, each in enumerate(text, 1):
        try:
            line = msgspec.json.decode(each)
        except msgspec.DecodeError as error:
            raise BadInput(f"{file}:{number}: not JSON: {error}: wants a file of serve --decision-log") from error
        if problem := _problem(line):
            raise BadInput(f"{file}:{number}: {problem}: wants a line of serve --decision-log")
        yield line


def _problem(line: Any) -> str | None:
    """Say why this is no line of ours; None if it is one."""
    if not isinstance(line, dict) or line.get("v") != VERSION:
        return f"no line of version {VERSION}"
    verb = str(line.get("verb"))
    if verb not in REVIEWS and verb not in VERBS:
        return f"verb {verb[:40]!r}"
    wanted = {"namespace": str, "form": str} if verb in REVIEWS else {ASKED[verb]: list if verb != "preempt" else dict}
    for key, kind in {**wanted, "pod": dict, "decision": str, "reasons": dict, "actions": list, "answer": str}.items():
        if not isinstance(line.get(key), kind):
            return f"no {key}"
    return "no such form" if verb in REVIEWS and line["form"] not in PodForm.__members__ else None


def differing(lines: Iterable[Line], backend: Backend) -> Iterator[DifferingDecision | None]:
    """Decide each line again, in the order of the log: promises rest on it. Gives None for one that decides the same.

    Of questions with whole nodes the answer's bytes are not compared: the nodes are recorded by name only.
    """
    for number, line in enumerate(lines, 1):
        was = {key: line[key] for key in DECIDED}
        now = decided_again(line, backend)
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


def decided_again(line: Line, backend: Backend) -> dict[str, Any]:
    """Decide again what a line is about; gives the members that say what was decided.

    Raises MalformedPod, QuantityError, WireError for a pod that nobody could have recorded.
    """
    return _reviewed(line, backend) if line["verb"] in REVIEWS else _answered(line, backend)


def _reviewed(line: Line, backend: Backend) -> dict[str, Any]:
    setting = replace(
        backend.setting(),
        form=PodForm[line["form"]],
        existing_ephemeral=frozenset(line.get("settled", ())),
        old_template=line.get("before"),
    )
    namespace = line["namespace"]
    verdict = REVIEWS[line["verb"]](line["pod"], namespace, backend.namespace_labels(namespace), setting)
    outcome = "patched" if verdict.operations else "allowed" if verdict.concerned else "unconcerned"
    return {
        "decision": outcome if verdict.allowed else "denied",
        "reasons": {each.code.name: 1 for each in verdict.reasons},
        "actions": list(verdict.record),
        "answer": "",
    }


def _answered(line: Line, backend: Backend) -> dict[str, Any]:
    asked = {"Pod": line["pod"]}
    asked |= {"NodeNameToMetaVictims": line["victims"]} if "victims" in line else {"NodeNames": line["nodes"]}
    try:
        answered = VERBS[line["verb"]](encode(asked), backend)
    except WireError as error:
        return {"decision": "error", "reasons": {}, "actions": [str(error)], "answer": ""}
    outcome = "none_fits" if answered.asked and not answered.kept else "answered"
    return {
        "decision": "error" if answered.error else outcome,
        "reasons": {code.name: count for code, count in Counter(answered.refused).items()},
        "actions": [],
        "answer": hashlib.sha256(answered.body).hexdigest(),
    }
