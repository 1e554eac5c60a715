# SPDX-License-Identifier: Apache-2.0
"""An explanation as a tenant may read it: of other namespaces it has counts, never a name.

What comes from the pod itself, from nodes and from the policies that match the pod stays. Pods and claims that hold
GPUs are named by `explain` as namespace/name; those of other namespaces are taken out twice: the changes of the fleet
that name them are written anew, and then every text is searched for what looks like such a name.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import msgspec

from app.explain.counterfactual import FixStep
from app.explain.explanation import Explanation
from app.explain.pending_cause import text_for_namespace

ELSEWHERE = "of another namespace"
OWN = frozenset({"pod", "asks", "asked_by", "claims", "claimed", "dra", "patch", "needs"})
"""Members that are made from the pod alone."""
_HOLDER = re.compile(r"\b(pod|claim|PodGroup) ([a-z0-9][-a-z0-9]{0,62})/[a-z0-9][-a-z0-9.]{0,252}")
_KEY = re.compile(r"(?<![\w./-])([a-z0-9][-a-z0-9]{0,62})/[a-z0-9][-a-z0-9.]{0,252}")
_FLEET = "fleet"


def for_tenant(explanation: Explanation, namespace: str, namespaces: Collection[str]) -> Explanation:
    """Return the explanation for a reader who may read pods of `namespace` alone.

    `namespaces` are those of the cluster, by which a name without its kind is recognised.
    """
    fixes = tuple(replace(fix, edits=tuple(_step(step, namespace) for step in fix.edits)) for fix in explanation.fixes)
    known = replace(explanation, fixes=fixes, verdicts=None)
    others = frozenset(namespaces) - {namespace}
    return msgspec.convert(
        _scrubbed(msgspec.to_builtins(known), lambda text: scrub(text, namespace, others)), type=Explanation
    )


def _step(step: FixStep, namespace: str) -> FixStep:
    """Write a change of the fleet without the pods that it evicts in other namespaces."""
    if step.of != _FLEET:
        return step
    own = tuple(evicted for evicted in step.evicts if evicted.pod.partition("/")[0] == namespace)
    return replace(step, text=text_for_namespace(step, namespace), evicts=own)


def _scrubbed(value: Any, scrub_text: Callable[[str], str]) -> Any:
    """Apply a function to all texts of a JSON value but those of OWN members."""
    if isinstance(value, str):
        return scrub_text(value)
    if isinstance(value, (list, tuple)):
        return [_scrubbed(member, scrub_text) for member in value]
    if isinstance(value, dict):
        return {key: member if key in OWN else _scrubbed(member, scrub_text) for key, member in value.items()}
    return value


def scrub(text: str, namespace: str, others: Collection[str]) -> str:
    """Write a text without the names of pods and claims of other namespaces."""

    def holder(found: re.Match[str]) -> str:
        return found[0] if found[2] == namespace else f"a {found[1]} {ELSEWHERE}"

    def key(found: re.Match[str]) -> str:
        return f"something {ELSEWHERE}" if found[1] in others else found[0]

    return _KEY.sub(key, _HOLDER.sub(holder, text))
