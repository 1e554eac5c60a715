# SPDX-License-Identifier: Apache-2.0
"""Policy files into a PolicySet: parse, validate, compile, and check the set as a whole.

Texts come in by file name, objects that came parsed by a name of their own; their order never matters, and either
all of them are good or none is used.
"""

from collections.abc import Generator, Iterable, Mapping
from difflib import get_close_matches
from itertools import islice
from typing import Any

from pydantic import ValidationError

from app.knowledge.tables import Knowledge
from app.policy.compiled import CompiledPolicy, PodSelection, PolicySet, hash_of
from app.policy.document import Document, Path, check_values, document_steps
from app.policy.fields import LabelSelector, model_in
from app.policy.schema import GPUPolicy, Rule
from app.policy.ties import set_problems
from app.values.errors import BadInput, PolicyError
from app.values.label_requirements import Requirement, from_selector
from app.values.steps import finish

WORKLOAD_CLASS_BELOW = 1000
"""Only policies below this priority may be picked by a pod's own annotation (docs/reference/policy.md#match)."""


MOST_POLICIES = 500
"""Of a set: every pod is matched against each, and those of one priority are compared in pairs; guess, ten times what
the largest public collections of admission policies ship."""
MOST_VALUES = 2_500
"""In one policy: keys, words, lists and mappings. One with every list at its limit that repeats nothing has some 1,500,
and 2,500 take some 30 ms to read and check (measured)."""
MOST_PROBLEMS = 20
"""Told of one document: nobody mends more at once, and a near name is looked for in each (0.3 ms)."""
LONGEST_GUESSED = 64
"""Characters of an unknown field for which a name is guessed; the longest field name has 20."""

LONGEST_SAID = 80
"""Characters of a key in a message."""

Source = str | Mapping[str, Any]
Read = tuple[CompiledPolicy, ...] | PolicyError
Kept = Mapping[str, tuple[Source, Read]]
"""By name: what was read, and what came of it."""


def load_policies(
    texts: Mapping[str, str],
    knowledge: Knowledge,
    fallback: CompiledPolicy | None = None,
    objects: Mapping[str, Mapping[str, Any]] | None = None,
) -> PolicySet:
    """Read every text, by file name, then every object. `fallback`: the policy for pods that none of them is for.

    A name that two of them give is an error on the later one.

    Raises PolicyError with all problems of all files.
    """
    return finish(load_steps(texts, objects or {}, knowledge, fallback, {}))


def load_steps(
    texts: Mapping[str, str],
    objects: Mapping[str, Mapping[str, Any]],
    knowledge: Knowledge,
    fallback: CompiledPolicy | None,
    known: dict[str, tuple[Source, Read]],
) -> Generator[None, None, PolicySet]:
    """Load as load_policies does, in steps of some 30 ms at most.

    `known`: what was read before; it is not read again where it is the same, and what is read is added.

    Raises PolicyError.
    """
    problems: list[str] = []
    policies: list[CompiledPolicy] = []
    sources: dict[str, Source] = {**texts, **objects}
    for name, source in sources.items():
        if name not in known or known[name][0] != source:
            known[name] = source, (yield from _read(name, source, knowledge))
        found = known[name][1]
        problems.extend(found.problems if isinstance(found, PolicyError) else ())
        policies.extend(found if isinstance(found, tuple) else ())
        if len(policies) > MOST_POLICIES:
            raise PolicyError((f"{name}: more than {MOST_POLICIES} policies in all: merge those that say the same",))
    yield from set_problems(policies, problems)
    if problems:
        raise PolicyError(tuple(problems))
    policies.sort(key=lambda policy: (-policy.spec.priority, policy.name))
    return PolicySet(tuple(policies), hash_of(policies), fallback)


def _read(name: str, source: Source, knowledge: Knowledge) -> Generator[None, None, Read]:
    """Read the policies of one text or object; what is wrong with it is a value."""
    try:
        if not isinstance(source, str):
            check_values(name, source, MOST_VALUES)
            return (_policy(Document(name, source, {}, {}), knowledge),)
        documents = yield from document_steps(name, source, MOST_VALUES)
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
        parsed = GPUPolicy.model_validate(document.value)
    except ValidationError as error:
        raise PolicyError(_first(document, (_explain(document, each) for each in error.errors()))) from error
    found = (f"{document.locate(path)}: {text}" for path, text in _policy_problems(parsed, knowledge))
    problems = _first(document, found)
    if problems:
        raise PolicyError(problems)
    match = parsed.spec.match
    return CompiledPolicy(
        name=parsed.metadata.name,
        origin=document.locate(("metadata", "name")),
        spec=parsed.spec,
        match=_selected(match.namespace_selector, match.pod_selector),
        exceptions=tuple(
            (_selected(each.match.namespace_selector, each.match.pod_selector), each.rules or tuple(Rule))
            for each in parsed.spec.exceptions
        ),
        workload_classes=frozenset(each.value for each in match.workload_class) if match.workload_class else None,
    )


def _first(document: Document, problems: Iterable[str]) -> tuple[str, ...]:
    """Take as many problems as one document is told, and say where more were not looked for."""
    found = tuple(islice(problems, MOST_PROBLEMS + 1))
    if len(found) <= MOST_PROBLEMS:
        return found
    return (*found[:MOST_PROBLEMS], f"{document.locate(())}: and more, which are not looked for: mend these first")


def _selected(namespace: LabelSelector | None, pod: LabelSelector | None) -> PodSelection:
    return PodSelection(_selector(namespace), _selector(pod))


def _selector(selector: LabelSelector | None) -> tuple[Requirement, ...] | None:
    return None if selector is None else from_selector(selector.model_dump(by_alias=True))


def _policy_problems(policy: GPUPolicy, knowledge: Knowledge) -> Iterable[tuple[Path, str]]:
    """Find what the schema cannot say: selectors, product names, the reach of workload classes."""
    match, spec = policy.spec.match, policy.spec
    yield from _selector_problems(("spec", "match"), match.namespace_selector, match.pod_selector)
    if match.workload_class and spec.priority >= WORKLOAD_CLASS_BELOW:
        yield (
            ("spec", "priority"),
            f"spec.priority: got {spec.priority}, wants less than {WORKLOAD_CLASS_BELOW} with match.workloadClass",
        )
    for index, exception in enumerate(spec.exceptions):
        if exception.match.namespace_selector is None and exception.match.pod_selector is None:
            where = f"spec.exceptions[{index}].match"
            yield ("spec", "exceptions", index, "match"), f"{where}: selects every pod, wants a selector"
        path = ("spec", "exceptions", index, "match")
        yield from _selector_problems(path, exception.match.namespace_selector, exception.match.pod_selector)
    yield from _product_problems(policy, knowledge)
    try:
        _selector(spec.placement.node_selector)
    except BadInput as error:
        yield ("spec", "placement", "nodeSelector"), f"spec.placement.nodeSelector: {error}"


def _selector_problems(
    path: Path, namespace: LabelSelector | None, pod: LabelSelector | None
) -> Iterable[tuple[Path, str]]:
    for name, selector in (("namespaceSelector", namespace), ("podSelector", pod)):
        try:
            _selector(selector)
        except BadInput as error:
            yield (*path, name), f"{_dotted((*path, name))}: {error}"


def _product_problems(policy: GPUPolicy, knowledge: Knowledge) -> Iterable[tuple[Path, str]]:
    products = policy.spec.placement.products
    if products is None:
        return
    for field, names in (("allow", products.allow), ("deny", products.deny), ("prefer", products.prefer)):
        for index, name in enumerate(names or ()):
            path = ("spec", "placement", "products", field, index)
            label = f"spec.placement.products.{field}[{index}]"
            try:
                known = knowledge.products.known(knowledge.products.pattern(name))
            except BadInput as error:
                yield path, f"{label}: {error}"
                continue
            meant = None if known else knowledge.products.suggest(name)
            if meant:
                yield path, f"{label}: unknown product {name!r}, did you mean {meant}?"


def _explain(document: Document, error: Any) -> str:
    """Turn a pydantic error into one line with a position and, where one is near, the name that was meant."""
    path: Path = tuple(error["loc"])
    dotted = _dotted(path)
    if error["type"] == "extra_forbidden":
        name = str(path[-1])
        meant = get_close_matches(name, _fields_at(path[:-1]), n=1) if len(name) <= LONGEST_GUESSED else []
        hint = f", did you mean {meant[0]}?" if meant else ", remove it"
        return f"{document.locate(path)}: {dotted}: unknown field{hint}"
    if error["type"] == "string_type" and path in document.literals:
        literal = document.literals[path]
        return f'{document.locate(path)}: {dotted}: got {literal} unquoted, wants a string, quote it: "{literal}"'
    message = error["msg"].removeprefix("Value error, ")
    return f"{document.locate(path)}: {dotted}: {message[:1].lower()}{message[1:]}"


def _dotted(path: Path) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_SAID]}"
    return text.removeprefix(".")


def _fields_at(path: Path) -> list[str]:
    """List the field names that the schema has at a path."""
    model: Any = GPUPolicy
    for part in path:
        if isinstance(part, int):
            continue
        field = next((each for each in model.model_fields.values() if each.alias == part), None)
        inner = model_in(field.annotation) if field else None
        if inner is None:
            return []
        model = inner
    return [field.alias or name for name, field in model.model_fields.items()]
