# SPDX-License-Identifier: Apache-2.0
"""CEL selectors of devices, evaluated as kube-scheduler does.

Selectors are those of a DeviceClass and of the requests of a ResourceClaim. The rules are those of kubernetes
staging/src/k8s.io/dynamic-resource-allocation/cel/compile.go and of google/cel-go 0.26, for Kubernetes 1.36. That the
answers are the same is tested against Kubernetes' own code (tests/dra/test_selectors_go.py), and why we have an
evaluator of our own is in docs/decisions/0036-evaluate-device-selectors-by-an-evaluator-of-our-own.md.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from app.dra.cel_checker import Checker
from app.dra.cel_comparisons import Comparison, read_comparison
from app.dra.cel_errors import EvaluationError, NotJudged, SelectorError
from app.dra.cel_facts import BUDGET, METER, Evaluate, Read, SelectableDevice, read_fact
from app.dra.cel_parser import parse
from app.dra.cel_program import Planner
from app.dra.cel_syntax import Call, CelNode, Fold, is_let

__all__ = [
    "Comparison",
    "Judgement",
    "Read",
    "SelectableDevice",
    "Selector",
    "SelectorError",
    "SelectorPart",
    "compile_selector",
    "written_conditions",
]

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


class _Condition:
    """A compiled expression, with the judgements of the facts that were seen."""

    def __init__(self, evaluate: Evaluate, reads: frozenset[Read] | None) -> None:
        self._evaluate = evaluate
        self.reads = reads
        self._order = tuple(reads) if reads is not None else ()
        self._judgements: dict[Any, Judgement] = {}

    def judge(self, device: SelectableDevice) -> Judgement:
        """Judge a device, or return what was said of one with the same facts."""
        if self.reads is None:
            return self._judge(device)
        facts = tuple([_key(read_fact(device, read)) for read in self._order])
        known = self._judgements.get(facts)
        if known is None:
            if len(self._judgements) >= _KEPT:
                self._judgements.clear()
            known = self._judgements[facts] = self._judge(device)
        return known

    def _judge(self, device: SelectableDevice) -> Judgement:
        try:
            result = self._evaluate(device, {METER: [BUDGET]})
        except EvaluationError as problem:
            return Judgement(error=str(problem))
        except NotJudged as problem:
            return Judgement(not_judged=str(problem))
        except UnicodeError:
            return Judgement(not_judged="a text that is no Unicode")
        if type(result) is not bool:
            return Judgement(error="CEL result could not be converted to bool")
        return _MATCHES if result else _DIFFERS


def _key(value: Any) -> Any:
    """Keep apart what Python takes for equal: true and 1, and a version and its text."""
    if type(value) is str or value is None:
        return value
    if isinstance(value, (bool, int, Fraction)):
        return type(value), value
    return tuple(map(_key, value)) if isinstance(value, tuple) else (type(value), value.text)


class Selector:
    """A compiled selector; `reads` are the facts that it asks about, None if they depend on values of others."""

    def __init__(
        self, expression: str, condition: _Condition, parts: tuple[tuple[str, _Condition, Comparison | None], ...]
    ):
        self.expression = expression
        self._condition = condition
        self._parts = parts

    @property
    def reads(self) -> frozenset[Read] | None:
        """The facts that the selector asks about: devices with the same of them are judged alike."""
        return self._condition.reads

    def judge(self, device: SelectableDevice) -> Judgement:
        """Judge a device."""
        return self._condition.judge(device)

    def failing_parts(self, device: SelectableDevice) -> tuple[SelectorPart, ...]:
        """Return the conditions that a device does not meet, or that fail, or are not judged for it."""
        parts = [self._part(text, condition, comparison, device) for text, condition, comparison in self._parts]
        return tuple(part for part in parts if part.judgement is not _MATCHES)

    @staticmethod
    def _part(
        text: str, condition: _Condition, comparison: Comparison | None, device: SelectableDevice
    ) -> SelectorPart:
        reads = sorted(condition.reads or ())
        facts = tuple((read, read_fact(device, read)) for read in reads)
        return SelectorPart(text, condition.judge(device), facts, comparison)


@lru_cache(maxsize=1024)
def compile_selector(expression: str) -> Selector:
    """Compile a selector; the last thousand are kept.

    Raises SelectorError for what kube-apiserver refuses, with words like its own.
    """
    try:
        if len(expression.encode()) > LONGEST:
            raise SelectorError(f"Too long: may not be more than {LONGEST} bytes")
        root = parse(expression)
        checker = Checker(expression)
        checker.check(root)
        condition = _compile(root, checker)
        parts = _conjuncts(root)
        compiled = tuple((_text(expression, part), _compile(part, checker), read_comparison(part)) for part in parts)
    except NotJudged as problem:
        return Selector(expression, *_unjudged(expression, str(problem)))
    except UnicodeError:
        raise SelectorError("the selector is no Unicode text") from None
    return Selector(expression, condition, compiled)


def written_conditions(expression: str) -> tuple[tuple[str, Comparison | None], ...]:
    """Split a selector into its conditions as they are written, also where it does not compile; none if unreadable."""
    try:
        return tuple((_text(expression, part), read_comparison(part)) for part in _conjuncts(parse(expression)))
    except (SelectorError, NotJudged, UnicodeError):
        return ()


def _unjudged(expression: str, why: str) -> tuple[_Condition, tuple[tuple[str, _Condition, None], ...]]:
    def fail(_: SelectableDevice, __: Any) -> Any:
        raise NotJudged(why)

    condition = _Condition(fail, frozenset())
    return condition, ((expression, condition, None),)


def _compile(node: CelNode, checker: Checker) -> _Condition:
    planner = Planner(checker.calls)
    evaluate = planner.plan(node, {})
    return _Condition(evaluate, None if planner.reads is None else frozenset(planner.reads))


def _conjuncts(node: CelNode) -> list[CelNode]:
    """Split an expression at `&&`, also inside of cel.bind(), whose variable each part then has."""
    if isinstance(node, Call) and node.function == "_&&_":
        return [part for argument in node.arguments for part in _conjuncts(argument)]
    if isinstance(node, Fold) and is_let(node):
        return [replace(node, result=part) for part in _conjuncts(node.result)]
    return [node]


def _text(expression: str, node: CelNode) -> str:
    """Return the text of a part; of a part inside of cel.bind() that of the part alone."""
    while isinstance(node, Fold) and is_let(node):
        node = node.result
    return " ".join(expression[node.start : node.end].split())
