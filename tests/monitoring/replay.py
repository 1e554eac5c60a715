# SPDX-License-Identifier: Apache-2.0
"""Replaying a line of the decision log: ask the same again, by the same code that answers requests."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from app.admission.case import Form
from app.api.admission import REVIEWS
from app.api.extender import filter_nodes, preempt, prioritize
from app.service import Usher

VERBS = {"filter": filter_nodes, "prioritize": prioritize, "preempt": preempt}
DECIDED = ("decision", "reasons", "actions", "answer")


def decided_again(line: Mapping[str, Any], service: Usher) -> dict[str, Any]:
    """Decide again what a line is about; gives the members that say what was decided."""
    return _reviewed(line, service) if line["verb"] in REVIEWS else _answered(line, service)


def _reviewed(line: Mapping[str, Any], service: Usher) -> dict[str, Any]:
    setting = replace(
        service.setting(),
        form=Form[line["form"]],
        settled=frozenset(line.get("settled", ())),
        before=line.get("before"),
    )
    namespace = line["namespace"]
    verdict = REVIEWS[line["verb"]](line["pod"], namespace, service.namespace_labels(namespace), setting)
    outcome = "patched" if verdict.operations else "allowed" if verdict.concerned else "unconcerned"
    return {
        "decision": outcome if verdict.allowed else "denied",
        "reasons": {each.code.name: 1 for each in verdict.reasons},
        "actions": list(verdict.record),
        "answer": "",
    }


def _answered(line: Mapping[str, Any], service: Usher) -> dict[str, Any]:
    asked = {"Pod": line["pod"]}
    asked |= {"NodeNameToMetaVictims": line["victims"]} if "victims" in line else {"NodeNames": line["nodes"]}
    answered = VERBS[line["verb"]](json.dumps(asked).encode(), service)
    outcome = "none_fits" if answered.asked and not answered.kept else "answered"
    return {
        "decision": "error" if answered.error else outcome,
        "reasons": {code.name: count for code, count in Counter(answered.refused).items()},
        "actions": [],
        "answer": hashlib.sha256(answered.body).hexdigest(),
    }
