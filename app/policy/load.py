# SPDX-License-Identifier: Apache-2.0
"""Loading of policy files and GPUPolicy objects into a PolicySet: parse, validate, compile, and check the whole set.

Sources come in as texts by file name and as objects by name. Their order does not matter. If any source has a problem,
none is used. Problems of the set are two policies of one name, and two of one priority that set a field differently.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import Any

from pydantic import ValidationError

from app.knowledge.tables import Knowledge
from app.policy.compiled import CompiledPolicy, PodSelection, PolicySet, policy_set_hash
from app.policy.document import Document, YAMLPath, check_object_values, read_documents
from app.policy.fields import LabelSelector, Merge, merge_rules
from app.policy.problems import (
    describe_error,
    located,
    policy_doubts,
    product_problems,
    unknown_products,
    version_problems,
)
from app.policy.schema import GROUP, GPUPolicy, Spec
from app.policy.schema_placement import Rule
from app.values.errors import BadInput, PolicyError
from app.values.label_requirements import Requirement, disjoint, selector_requirements

MOST_TIES = 100
"""Problems that are reported of a set. A guess; an administrator fixes fewer at once."""


def policy_set_problems(policies: list[CompiledPolicy], problems: list[str]) -> Iterator[None]:
    """Add the problems of a set to `problems`, at most MOST_TIES of them.

    Each step compares one policy with those of the same priority before it.
    """
    seen: dict[str, CompiledPolicy] = {}
    for policy in policies:
        if policy.name in seen:
            problems.append(f"{policy.origin}: metadata.name: {policy.name} is taken by {seen[policy.name].origin}")
        seen[policy.name] = policy
    ranked = sorted(seen.values(), key=lambda policy: (policy.spec.priority, policy.name))
    limit = len(problems) + MOST_TIES
    for _, group in groupby(ranked, key=lambda policy: policy.spec.priority):
        before: list[tuple[CompiledPolicy, dict[str, Any]]] = []
        for policy in group:
            values = _single_values(policy)
            for other, other_values in before:
                problems.extend(_contradictions(other, other_values, policy, values))
            if len(problems) > limit:
                del problems[limit:]
                problems.append(f"{policy.origin}: more policies contradict each other: fix these first")
                return
            before.append((policy, values))
            yield


def _contradictions(
    one: CompiledPolicy, values: Mapping[str, Any], other: CompiledPolicy, other_values: Mapping[str, Any]
) -> Iterable[str]:
    differing = [field for field, value in values.items() if other_values.get(field, value) != value]
    if not differing or _never_together(one, other):
        return
    for field in differing:
        yield (
            f"{other.origin}: spec.{field}: {other.name} and {one.name} both have priority "
            f"{one.spec.priority} and set it differently, give one a higher priority"
        )


def _never_together(one: CompiledPolicy, other: CompiledPolicy) -> bool:
    """Tell whether no pod can be selected by both."""
    if one.workload_classes and other.workload_classes and not one.workload_classes & other.workload_classes:
        return True
    sides = ((one.match.namespace, other.match.namespace), (one.match.pod, other.match.pod))
    return any(disjoint(left or (), right or ()) for left, right in sides)


SINGLE_VALUED = tuple(path for path, merge, _ in merge_rules(Spec) if merge is Merge.Single)
"""Fields of which the value of the highest priority wins (docs/reference/policy.md#merge), which is undefined at equal
priority."""


def _single_values(policy: CompiledPolicy) -> dict[str, Any]:
    """Give the values that a policy sets for SINGLE_VALUED fields."""
    fields: Any = policy.spec.model_dump(by_alias=True)
    single = {}
    for field in SINGLE_VALUED:
        value = fields
        for part in field.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            single[field] = value
    return single


WORKLOAD_CLASS_BELOW = 1000
"""Only policies below this priority may depend on a pod's own annotation (docs/reference/policy.md#match)."""


MOST_POLICIES = 500
"""Policies of a set, since each pod is matched against each, and those of one priority are compared in pairs. A guess:
ten times as many as the largest public collections of admission policies have."""
MOST_POLICY_VALUES = 2_500
"""Keys, scalars, lists and mappings of one policy. One with every list at its limit and no repetition has about 1,500,
and 2,500 take about 30 ms to read and check (measured)."""
MOST_PROBLEMS = 20
"""Problems that are reported of one document, since the search for a similar name takes 0.3 ms for each. A guess."""

POLICY_LABEL, POLICY_LABEL_VALUE = f"{GROUP}/policy", "true"
"""The label of a ConfigMap whose keys are policy files, and its value (docs/reference/policy.md)."""
MOUNTED = "gpu-usher-policies"
"""The ConfigMap of deploy/base that is mounted as the directory of policies."""
LAST_GOOD, LAST_GOOD_LABEL_VALUE = "gpu-usher-policies-last-good", "last-good"
"""The ConfigMap of deploy/components/events that holds the last good set, and its value of the policy label."""

Source = str | Mapping[str, Any]
"""A YAML text, or an object as the API server sends it."""
ReadSource = tuple[CompiledPolicy, ...] | PolicyError
"""The policies of a source, or what is wrong with it."""


def load_policies(
    texts: Mapping[str, str],
    knowledge: Knowledge,
    fallback: CompiledPolicy | None = None,
    objects: Mapping[str, Mapping[str, Any]] | None = None,
    cache: dict[str, tuple[Source, ReadSource]] | None = None,
) -> Generator[None, None, PolicySet]:
    """Load all texts, by file name, and then all objects, in steps of at most about 30 ms.

    `fallback` is the policy for pods that none of them matches. `cache` holds the sources of earlier calls with their
    results. A source that has not changed is not read again, and others are added. If two policies have one name, the
    error is reported on the later one. Raises PolicyError with all problems of all sources.
    """
    cache = {} if cache is None else cache
    problems: list[str] = []
    policies: list[CompiledPolicy] = []
    sources: dict[str, Source] = {**texts, **(objects or {})}
    for name, source in sources.items():
        if name not in cache or cache[name][0] != source:
            cache[name] = source, (yield from _read(name, source, knowledge))
        result = cache[name][1]
        if isinstance(result, PolicyError):
            problems.extend(result.problems)
        else:
            policies.extend(result)
        if len(policies) > MOST_POLICIES:
            raise PolicyError((f"{name}: more than {MOST_POLICIES} policies in all: merge those that say the same",))
    yield from policy_set_problems(policies, problems)
    if problems:
        raise PolicyError(tuple(problems))
    policies.sort(key=lambda policy: (-policy.spec.priority, policy.name))
    return PolicySet(tuple(policies), policy_set_hash(policies), fallback)


def _read(name: str, source: Source, knowledge: Knowledge) -> Generator[None, None, ReadSource]:
    """Read the policies of one source; a PolicyError is returned and not raised, so that it can be cached."""
    try:
        if not isinstance(source, str):
            check_object_values(name, source, MOST_POLICY_VALUES)
            return (_policy(Document(name, source, {}, {}), knowledge),)
        documents = yield from read_documents(name, source, MOST_POLICY_VALUES)
    except PolicyError as error:
        return error
    policies: list[CompiledPolicy] = []
    problems: list[str] = []
    for document in documents:
        try:
            policies.append(_policy(document, knowledge))
        except PolicyError as error:
            problems.extend(error.problems)
        yield
    return PolicyError(tuple(problems)) if problems else tuple(policies)


def _policy(document: Document, knowledge: Knowledge) -> CompiledPolicy:
    if not isinstance(document.value, dict):
        raise PolicyError((f"{document.locate(())}: got no mapping, wants a GPUPolicy document",))
    try:
        parsed = GPUPolicy.model_validate({key: part for key, part in document.value.items() if key != "status"})
    except ValidationError as error:
        described = (describe_error(document, detail, GPUPolicy, knowledge) for detail in error.errors())
        products = (located(document, path, text) for path, text in product_problems(document.value, knowledge))
        raise PolicyError(_limit_problems(document, chain(described, products))) from error
    texts = (located(document, path, text) for path, text in _policy_problems(parsed, knowledge))
    problems = _limit_problems(document, texts)
    if problems:
        raise PolicyError(problems)
    match = parsed.spec.match
    return CompiledPolicy(
        name=parsed.metadata.name,
        origin=document.locate(("metadata", "name")),
        spec=parsed.spec,
        match=_pod_selection(match.namespace_selector, match.pod_selector),
        exceptions=tuple(
            (_pod_selection(detail.match.namespace_selector, detail.match.pod_selector), detail.rules or tuple(Rule))
            for detail in parsed.spec.exceptions
        ),
        workload_classes=frozenset(detail.value for detail in match.workload_class) if match.workload_class else None,
        doubts=tuple(located(document, path, text) for path, text in policy_doubts(parsed, knowledge)),
        unknown_products=tuple(
            (pattern, located(document, path, text))
            for pattern, path, text in unknown_products(parsed.model_dump(by_alias=True), knowledge)
        ),
    )


def _limit_problems(document: Document, problems: Iterable[str]) -> tuple[str, ...]:
    """Take at most MOST_PROBLEMS problems of a document, and a note if there are more."""
    listed = tuple(islice(_distinct(problems), MOST_PROBLEMS + 1))
    if len(listed) <= MOST_PROBLEMS:
        return listed
    return (*listed[:MOST_PROBLEMS], f"{document.locate(())}: there may be more: fix these first")


def _distinct(texts: Iterable[str]) -> Iterator[str]:
    """Yield each text once, and compute no more of them than are asked for."""
    seen: set[str] = set()
    for text in texts:
        if text not in seen:
            seen.add(text)
            yield text


def _pod_selection(namespace: LabelSelector | None, pod: LabelSelector | None) -> PodSelection:
    return PodSelection(_selector(namespace), _selector(pod))


def _selector(selector: LabelSelector | None) -> tuple[Requirement, ...] | None:
    return None if selector is None else selector_requirements(selector.model_dump(by_alias=True))


def _policy_problems(policy: GPUPolicy, knowledge: Knowledge) -> Iterable[tuple[YAMLPath, str]]:
    """List the problems that the schema cannot express: in selectors, product names and workload classes."""
    match, spec = policy.spec.match, policy.spec
    yield from _selector_problems(("spec", "match"), match.namespace_selector, match.pod_selector)
    if match.workload_class and spec.priority >= WORKLOAD_CLASS_BELOW:
        yield (
            ("spec", "priority"),
            f"got {spec.priority}, wants less than {WORKLOAD_CLASS_BELOW} with match.workloadClass",
        )
    for index, exception in enumerate(spec.exceptions):
        if exception.match.namespace_selector is None and exception.match.pod_selector is None:
            yield ("spec", "exceptions", index, "match"), "selects every pod, wants a selector"
        path = ("spec", "exceptions", index, "match")
        yield from _selector_problems(path, exception.match.namespace_selector, exception.match.pod_selector)
    yield from product_problems(policy.model_dump(by_alias=True), knowledge)
    yield from version_problems(spec.placement, knowledge.cuda)
    try:
        _selector(spec.placement.node_selector)
    except BadInput as error:
        yield ("spec", "placement", "nodeSelector"), str(error)


def _selector_problems(
    path: YAMLPath, namespace: LabelSelector | None, pod: LabelSelector | None
) -> Iterable[tuple[YAMLPath, str]]:
    for name, selector in (("namespaceSelector", namespace), ("podSelector", pod)):
        try:
            _selector(selector)
        except BadInput as error:
            yield (*path, name), str(error)
