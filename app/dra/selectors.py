# SPDX-License-Identifier: Apache-2.0
"""CEL selectors of devices, evaluated as kube-scheduler does.

Selectors are those of a DeviceClass and of the requests of a ResourceClaim. The rules are those of kubernetes
staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go and of google/cel-go 0.26, for Kubernetes 1.36, and of
them what selectors use; the rest is not judged. That no answer differs is tested against Kubernetes' own code
(tests/dra/test_selectors_go.py); why it is our own: docs/decisions/0062-judge-the-selectors-that-people-write.md.

`Selection` asks each expression once about each device.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from app.dra.cel_comparisons import Comparison, read_comparison
from app.dra.cel_facts import Evaluate, Read, read_fact
from app.dra.cel_macros import Expander
from app.dra.cel_parser import parse
from app.dra.cel_program import Program
from app.dra.cel_syntax import Call, CelNode, EvaluationError, SelectorError, path_of
from app.dra.cel_syntax import NotJudged as NotJudged
from app.kube.devices import Device

LONGEST = 10 * 1024
"""Characters of a selector (resource/v1 types.go, CELSelectorExpressionMaxLength)."""
_KEPT = 4096
"""Judgements that each selector, or part of one, keeps; then it begins anew."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a selector says of a device; exactly one of the three is not None.

    `error` is why the evaluation fails, as for an attribute that the device does not have. kube-scheduler then aborts
    the attempt to schedule the pod and tries it again later; devices and nodes that would do are not looked at (the
    error of the allocator is no ErrFailedAllocationOnNode: kubernetes staging/src/k8s.io/dynamic-resource-allocation/
    structured/internal/stable/allocator_stable.go, selectorsMatch; pkg/scheduler/framework/plugins/dynamicresources/
    dynamicresources.go, Filter). `not_judged` is what keeps us from evaluating the selector, though Kubernetes does.
    """

    matches: bool | None = None
    error: str | None = None
    not_judged: str | None = None


_MATCHES, _DIFFERS = Judgement(matches=True), Judgement(matches=False)


@dataclass(frozen=True, slots=True)
class SelectorPart:
    """One of the conditions that a selector joins with `&&`, and what it says of a device.

    `facts` are what it reads, each with the value that the device has, or None. `comparison` is what it wants of one
    fact, if it has such a form.
    """

    text: str
    judgement: Judgement
    facts: tuple[tuple[Read, Any], ...]
    comparison: Comparison | None


class Condition:
    """A compiled expression, with the judgements of the facts that were seen.

    `reads` are the facts that it asks about: devices with the same of them are judged alike. `comparison` is what it
    wants of one fact, if it has such a form.
    """

    def __init__(self, text: str, evaluate: Evaluate, reads: Iterable[Read], comparison: Comparison | None) -> None:
        self.text, self.reads, self.comparison = text, frozenset(reads), comparison
        self._evaluate = evaluate
        self._order = tuple(sorted(self.reads))
        self._judgements: dict[Any, Judgement] = {}

    def judge(self, device: Device) -> Judgement:
        """Judge a device, or return what was said of one with the same facts."""
        facts = tuple([_key(read_fact(device, read)) for read in self._order])
        known = self._judgements.get(facts)
        if known is None:
            if len(self._judgements) >= _KEPT:
                self._judgements.clear()
            known = self._judgements[facts] = self._judge(device)
        return known

    def _judge(self, device: Device) -> Judgement:
        try:
            result = self._evaluate(device)
        except EvaluationError as problem:
            return Judgement(error=str(problem))
        except NotJudged as problem:
            return Judgement(not_judged=str(problem))
        except UnicodeError:
            return Judgement(not_judged="a text that is no Unicode")
        if type(result) is not bool:
            return Judgement(error="CEL result could not be converted to bool")
        return _MATCHES if result else _DIFFERS

    def part(self, device: Device) -> SelectorPart:
        """Judge a device, with the facts that were read."""
        facts = tuple((read, read_fact(device, read)) for read in self._order)
        return SelectorPart(self.text, self.judge(device), facts, self.comparison)


def _key(value: Any) -> Any:
    """Keep apart what Python takes for equal: true and 1, and a version and its text."""
    if type(value) is str or value is None:
        return value
    if isinstance(value, (bool, int, Fraction)):
        return type(value), value
    return tuple(map(_key, value)) if isinstance(value, tuple) else (type(value), value.text)


@dataclass(frozen=True, slots=True)
class Selector:
    """A compiled selector: the whole condition, and the conditions that it joins with `&&`."""

    whole: Condition
    conditions: tuple[Condition, ...]

    @property
    def reads(self) -> frozenset[Read]:
        """The facts that the selector asks about, as those of Condition."""
        return self.whole.reads

    def judge(self, device: Device) -> Judgement:
        """Judge a device."""
        return self.whole.judge(device)

    def failing_parts(self, device: Device) -> tuple[SelectorPart, ...]:
        """Return the conditions that a device does not meet, or that fail, or are not judged for it."""
        parts = [condition.part(device) for condition in self.conditions]
        return tuple(part for part in parts if part.judgement is not _MATCHES)


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Selector:
    """Compile a selector; the last thousand are kept.

    Raises SelectorError for what kube-apiserver refuses, with words like its own.
    """
    try:
        if len(expression.encode()) > LONGEST:
            raise SelectorError(f"Too long: may not be more than {LONGEST} bytes")
        return _compile(expression)
    except NotJudged as problem:
        return _not_judged(expression, str(problem))
    except UnicodeError:
        raise SelectorError("the selector is no Unicode text") from None


def _compile(expression: str) -> Selector:
    expander = Expander(expression)
    root = expander.expand(parse(expression), {})
    for value in expander.unused:
        with suppress(*((NotJudged,) if path_of(value) else ())):  # the attributes of a domain are no value
            Program(expression).compile(value)
    whole = _condition(expression, root, expression)
    return Selector(whole, tuple(_condition(expression, part, _text(expression, part)) for part in _conjuncts(root)))


def _condition(expression: str, node: CelNode, text: str) -> Condition:
    program = Program(expression)
    return Condition(text, program.condition(node), program.reads, read_comparison(node))


def _not_judged(expression: str, problem: str) -> Selector:
    def fail(_: Device) -> Any:
        raise NotJudged(problem)

    condition = Condition(expression, fail, (), None)
    return Selector(condition, (condition,))


def written_conditions(expression: str) -> tuple[tuple[str, Comparison | None], ...]:
    """Split a selector into its conditions as they are written, also where it does not compile; none if unreadable."""
    try:
        root = Expander(expression).expand(parse(expression), {})
        return tuple((_text(expression, part), read_comparison(part)) for part in _conjuncts(root))
    except (SelectorError, NotJudged, UnicodeError):
        return ()


def _conjuncts(node: CelNode) -> list[CelNode]:
    """Split an expression at `&&`, but not inside of a variable or a loop."""
    if isinstance(node, Call) and node.function == "_&&_" and len(node.arguments) > 1:
        return [part for argument in node.arguments for part in _conjuncts(argument)]
    return [node]


def _text(expression: str, node: CelNode) -> str:
    return " ".join(expression[node.start : node.end].split())


class ClaimError(Exception):
    """Something is wrong with a claim or a class: kube-scheduler gives up on the pod, whatever other nodes have.

    `expression` is the selector that is wrong, if one is, and `device` the device on which it fails; None where it is
    not valid for any.
    """

    def __init__(self, text: str, expression: str = "", device: Device | None = None) -> None:
        super().__init__(text)
        self.expression, self.device = expression, device


def shortened(expression: str) -> str:
    """Write an expression on one line, and no more of it than a person reads."""
    text = " ".join(expression.split())
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


LONGEST_SHOWN = 160


class Selection:
    """What each expression said about each device; devices are kept as long as this is."""

    def __init__(self) -> None:
        self._answers: dict[str, dict[Device, bool]] = {}

    def test(self, expression: str, device: Device) -> bool:
        """Tell whether an expression selects a device.

        Raises ClaimError where it is no valid selector, or fails on the device, and NotJudged.
        """
        answers = self._answers.setdefault(expression, {})
        answer = answers.get(device)
        if answer is None:
            answer = answers[device] = _selects(expression, device)
        return answer

    def test_all(self, expressions: Iterable[str], device: Device) -> bool:
        """Tell whether all expressions select a device; those after the first that does not are not asked.

        Raises ClaimError, NotJudged.
        """
        return all(self.test(expression, device) for expression in expressions)


def _selects(expression: str, device: Device) -> bool:
    try:
        judgement = compile_selector(expression).judge(device)
    except SelectorError as error:
        raise ClaimError(f"the selector {shortened(expression)} is not valid: {error}", expression) from error
    if judgement.error is not None:
        text = f"the selector {shortened(expression)} fails on device {device.name}: {judgement.error}"
        raise ClaimError(text, expression, device)
    if judgement.matches is None:
        raise NotJudged(f"the selector {shortened(expression)}: {judgement.not_judged}")
    return judgement.matches
