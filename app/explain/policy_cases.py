# SPDX-License-Identifier: Apache-2.0
"""Policy cases: a pod, some nodes, and what is expected to come of them; the file's name is the sentence it proves.

Run by `gpu-usher test`, by pytest through the core, and by pytest over HTTP, from the same files.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from app.admission.fleet_facts import fleet_of
from app.admission.json_patch import apply
from app.admission.review import Setting, mutate
from app.knowledge.tables import Knowledge
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.placement.engine import judge, total
from app.placement.ranking import first_in_order
from app.policy.compiled import Policy, PolicySet
from app.policy.document import read_documents
from app.policy.match import rule_on
from app.values.errors import BadInput, PolicyError
from app.values.reasons import Code


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class CaseNode(_Part):
    """A node in short: its labels, what it offers, what pods hold of that, its taints; `capacity` where it is more."""

    labels: dict[str, str] = Field(default={}, description="as GPU Feature Discovery and the cloud write them")
    allocatable: dict[str, int] = Field(default={}, description="what it offers, by resource")
    capacity: dict[str, int] = Field(default={}, description="where it is more than is offered: withdrawn devices")
    used: dict[str, int] = Field(default={}, description="what pods hold of that")
    taints: list[dict[str, str]] = Field(default=[], description="key, value, effect")

    def document(self, name: str) -> dict[str, Any]:
        """Write it as the Node that the API server would send."""
        return {
            "kind": "Node",
            "metadata": {"name": name, "labels": self.labels},
            "spec": {"taints": self.taints},
            "status": {"allocatable": _texts(self.allocatable), "capacity": _texts(self.allocatable | self.capacity)},
        }


def _texts(amounts: Mapping[str, int]) -> dict[str, str]:
    return {key: str(amount) for key, amount in amounts.items()}


class Expectation(_Part):
    """What is expected; whatever is left out is not looked at, but for `allowed` and `reasons`."""

    allowed: bool = Field(default=True, description="whether admission lets the pod in")
    reasons: list[str] = Field(default=[], description="reason codes of a denial, all of them")
    warnings: list[str] = Field(default=[], description="words, each of which some warning holds")
    patched: dict[str, Any] = Field(
        default={}, description="by path of the pod after admission, what stands there: spec.tolerations[0].key"
    )
    unchanged: bool | None = Field(default=None, description="whether admission leaves the pod as it is")
    fits: list[str] | None = Field(default=None, description="the nodes that it fits on, all of them")
    refused: dict[str, str] = Field(default={}, description="reason code by node")
    best: str | None = Field(default=None, description="the node with the highest score")


class Case(_Part):
    """One case file."""

    pod: dict[str, Any] = Field(description="as its user writes it")
    namespace_labels: dict[str, str] = Field(default={}, description="of its namespace")
    nodes: dict[str, CaseNode] = Field(default={}, description="the fleet, by name; see below")
    runtime_classes: list[str] | None = Field(default=None, description="that the cluster has; absent: not known")
    expect: Expectation = Field(default=Expectation(), description="what is expected; see below")


def read_case(file: str, text: str) -> Case:
    """Read a case file.

    Raises PolicyError with file:line:column.
    """
    documents = read_documents(file, text)
    if len(documents) != 1:
        raise PolicyError((f"{file}:1:1: got {len(documents)} documents, wants one case",))
    try:
        case = Case.model_validate(documents[0].value)
    except ValidationError as error:
        problems = (f"{documents[0].locate(each['loc'])}: {each['msg']}" for each in error.errors())
        raise PolicyError(tuple(problems)) from error
    unknown = {*case.expect.reasons, *case.expect.refused.values()} - set(Code.__members__)
    if unknown:
        where = documents[0].locate(("expect",))
        raise PolicyError((f"{where}: {', '.join(sorted(unknown))}: no such reason code",))
    try:
        read_pod(case.pod)
    except BadInput as error:
        raise PolicyError((f"{documents[0].locate(('pod',))}: pod.{error}",)) from error
    return case


def run_case(case: Case, policies: PolicySet, knowledge: Knowledge) -> Iterator[str]:
    """Play a case through the core; gives each difference as `what: got …, wants …`.

    Raises MalformedPod.
    """
    nodes = [read_node(each.document(name), knowledge, each.used) for name, each in case.nodes.items()]
    names = case.runtime_classes
    classes: dict[str, dict[str, str]] | None = None if names is None else {name: {} for name in names}
    setting = Setting(policies, fleet_of(nodes, classes, knowledge), knowledge)
    namespace = read_pod(case.pod).namespace
    verdict = mutate(case.pod, namespace, case.namespace_labels, setting)
    codes = [each.code.name for each in verdict.reasons]
    yield from admission_differences(case, verdict.allowed, codes, list(verdict.warnings))
    if verdict.allowed:
        admitted = apply(case.pod, verdict.operations)
        yield from patch_differences(case, admitted, bool(verdict.operations))
        yield from _placement_differences(case, admitted, nodes, setting)


def rules_of(policies: PolicySet) -> set[str]:
    """List what can be covered: `policy.rule` for every rule that a policy sets."""
    return {f"{policy.name}.{rule}" for policy in policies.policies for rule in _set_rules(policy)}


def rules_touched(case: Case, policies: PolicySet, knowledge: Knowledge) -> set[str]:
    """List the rules that rule on a case's pod."""
    pod = read_pod(case.pod)
    matched = set(rule_on(pod, case.namespace_labels, policies, knowledge).policies)
    return {f"{each.name}.{rule}" for each in policies.policies if each.name in matched for rule in _set_rules(each)}


def _set_rules(policy: Policy) -> set[str]:
    parts = (policy.spec.admission, policy.spec.placement)
    return {type(part).model_fields[name].alias or name for part in parts for name in part.model_fields_set}


def admission_differences(case: Case, allowed: bool, codes: list[str] | None, warnings: list[str]) -> Iterator[str]:
    """Compare what was decided and said. `codes`: None where they cannot be seen (over HTTP)."""
    expect = case.expect
    if allowed is not expect.allowed:
        yield f"allowed: got {allowed} {codes or ''}, wants {expect.allowed}"
    if codes is not None and sorted(codes) != sorted(expect.reasons):
        yield f"reasons: got {sorted(codes)}, wants {sorted(expect.reasons)}"
    for words in expect.warnings:
        if not any(words in warning for warning in warnings):
            yield f"warnings: got {warnings}, wants one with {words!r}"


def patch_differences(case: Case, admitted: Mapping[str, Any], changed: bool) -> Iterator[str]:
    """Compare the pod after admission."""
    if case.expect.unchanged is not None and changed is case.expect.unchanged:
        yield f"unchanged: got {not changed}, wants {case.expect.unchanged}"
    for path, wanted in case.expect.patched.items():
        found = _at(admitted, path)
        if found != wanted:
            yield f"patched {path}: got {found!r}, wants {wanted!r}"


_PATH_PART = re.compile(r"\[([^\]]+)\]|([^.\[\]]+)")


def _at(document: Any, path: str) -> Any:
    """Follow a path such as `spec.containers[0].resources.limits[nvidia.com/gpu]`; None where it leads nowhere."""
    for bracketed, plain in _PATH_PART.findall(path):
        key = bracketed or plain
        if isinstance(document, list):
            document = document[int(key)] if key.isdecimal() and int(key) < len(document) else None
        else:
            document = document.get(key) if isinstance(document, dict) else None
    return document


def _placement_differences(
    case: Case, admitted: Mapping[str, Any], nodes: list[Node], setting: Setting
) -> Iterator[str]:
    pod = read_pod(admitted)
    demand = rule_on(pod, case.namespace_labels, setting.policies, setting.knowledge).demand
    verdicts = {node.name: judge(demand, node, recount=True) for node in nodes}
    fitting = [node for node in nodes if verdicts[node.name] is None]
    fits = [node.name for node in fitting]
    best = fits[first_in_order(fits, [total(demand, node) for node in fitting])] if fits else None
    refused = {name: verdict.code.name for name, verdict in verdicts.items() if verdict is not None}
    yield from placement_differences(case, fits, refused, best)


def placement_differences(case: Case, fits: list[str], refused: Mapping[str, str], best: str | None) -> Iterator[str]:
    """Compare where the pod fits, why not elsewhere, and which node is first."""
    expect = case.expect
    if expect.fits is not None and sorted(fits) != sorted(expect.fits):
        yield f"fits: got {sorted(fits)}, wants {sorted(expect.fits)}, refused: {dict(refused)}"
    for name, code in expect.refused.items():
        if refused.get(name) != code:
            yield f"refused {name}: got {refused.get(name)}, wants {code}"
    if expect.best is not None and best != expect.best:
        yield f"best: got {best}, wants {expect.best}"
