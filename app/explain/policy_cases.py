# SPDX-License-Identifier: Apache-2.0
"""Policy cases: a pod, some nodes, and the expected result; the file's name is the sentence that the case proves.

`gpu-usher policy test` and pytest run the same files, pytest both through the core and over HTTP.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.admission.review import mutate_reviewed
from app.admission.reviewed_pod import ReviewContext, begin_review
from app.knowledge.tables import Knowledge
from app.kube.objects import RuntimeClass
from app.kube.pods import read_pod
from app.nodes.model import Node
from app.nodes.reading import read_node
from app.placement.engine import judge, total
from app.placement.ranking import best_position
from app.policy.case_document import Case
from app.policy.compiled import CompiledPolicy, PolicySet
from app.policy.demand import Demand
from app.policy.match import ruling_for
from app.policy.problems import in_yaml
from app.world.fleet_facts import fleet_facts_of
from app.world.state import State
from app.world.world import world_of


def run_case(case: Case, policies: PolicySet, knowledge: Knowledge) -> Iterator[str]:
    """Run a case through the core; yields each difference as `what: got …, wants …`.

    A case that fails ends with the policies that apply to its pod. Raises MalformedPod.
    """
    differences = list(_differences(case, policies, knowledge))
    if differences:
        applied = ruling_for(read_pod(case.pod), case.labels_of_namespace, policies, knowledge).policies
        differences.append(f"policies that apply: {', '.join(applied) or 'none'}; namespace {case.namespace}")
    yield from differences


def _differences(case: Case, policies: PolicySet, knowledge: Knowledge) -> Iterator[str]:
    nodes = [read_node(node.document(name), knowledge, node.used) for name, node in case.nodes.items()]
    names = case.runtime_classes
    classes = None if names is None else {name: RuntimeClass(name) for name in names}
    context = ReviewContext(
        replace(world_of(State(knowledge), policies), fleet=fleet_facts_of(nodes, classes, knowledge))
    )
    review = begin_review(case.pod, read_pod(case.pod), case.labels_of_namespace, context)
    result = mutate_reviewed(review)
    codes = [reason.code.name for reason in result.reasons]
    yield from admission_differences(case, result.allowed, codes, list(result.warnings))
    if result.allowed:
        admitted = result.admitted or review
        yield from patch_differences(case, admitted.document, bool(result.operations))
        yield from _placement_differences(case, admitted.ruling.demand, nodes)


def rules_of(policies: PolicySet) -> set[str]:
    """List the rules that cases can cover: `policy.rule` for every rule that a policy sets."""
    return {f"{policy.name}.{rule}" for policy in policies.policies for rule in _set_rules(policy)}


def rules_touched(case: Case, policies: PolicySet, knowledge: Knowledge) -> set[str]:
    """List the rules of the policies that match a case's pod."""
    pod = read_pod(case.pod)
    matched = set(ruling_for(pod, case.labels_of_namespace, policies, knowledge).policies)
    return {
        f"{policy.name}.{rule}" for policy in policies.policies if policy.name in matched for rule in _set_rules(policy)
    }


def _set_rules(policy: CompiledPolicy) -> set[str]:
    parts = (policy.spec.admission, policy.spec.placement)
    return {type(part).model_fields[name].alias or name for part in parts for name in part.model_fields_set}


def admission_differences(case: Case, allowed: bool, codes: list[str] | None, warnings: list[str]) -> Iterator[str]:
    """Compare the admission result; `codes` is None where they cannot be seen (over HTTP)."""
    expect = case.expect
    if allowed is not expect.allowed:
        yield f"allowed: got {in_yaml(allowed)}{f' {in_yaml(codes)}' if codes else ''}, wants {in_yaml(expect.allowed)}"
    if codes is not None and sorted(codes) != sorted(expect.reasons):
        yield f"reasons: got {in_yaml(sorted(codes))}, wants {in_yaml(sorted(expect.reasons))}"
    for words in expect.warnings:
        if not any(words in warning for warning in warnings):
            yield f"warnings: got {in_yaml(warnings)}, wants one with {words!r}"


def patch_differences(case: Case, admitted: Mapping[str, Any], changed: bool) -> Iterator[str]:
    """Compare the pod after admission with what the case expects."""
    if case.expect.unchanged is not None and changed is case.expect.unchanged:
        yield f"unchanged: got {in_yaml(not changed)}, wants {in_yaml(case.expect.unchanged)}"
    for path, expected in case.expect.patched.items():
        value = _at(admitted, path)
        if value != expected:
            got = "nothing there" if value is None else in_yaml(value)
            yield f"patched {path}: got {got}, wants {in_yaml(expected)}"


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


def _placement_differences(case: Case, demand: Demand, nodes: list[Node]) -> Iterator[str]:
    verdicts = {node.name: judge(demand, node, recount=True) for node in nodes}
    fitting = [node for node in nodes if verdicts[node.name] is None]
    fits = [node.name for node in fitting]
    best = fits[best_position(fits, [total(demand, node) for node in fitting])] if fits else None
    refused = {name: verdict.code.name for name, verdict in verdicts.items() if verdict is not None}
    yield from placement_differences(case, fits, refused, best)


def placement_differences(case: Case, fits: list[str], refused: Mapping[str, str], best: str | None) -> Iterator[str]:
    """Compare the nodes that fit, the reasons of the others, and the best node."""
    expect = case.expect
    if expect.fits is not None and sorted(fits) != sorted(expect.fits):
        got, wanted = in_yaml(sorted(fits)), in_yaml(sorted(expect.fits))
        yield f"fits: got {got}, wants {wanted}, refused: {in_yaml(dict(refused))}"
    for name, code in expect.refused.items():
        if refused.get(name) != code:
            yield f"refused {name}: got {refused.get(name, 'a node that fits')}, wants {code}"
    if expect.best is not None and best != expect.best:
        yield f"best: got {best or 'no node that fits'}, wants {expect.best}"
