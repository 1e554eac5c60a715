# SPDX-License-Identifier: Apache-2.0
"""What decides in CEL which parts of an expression are evaluated, and what becomes of their errors.

The rules are those of google/cel-go interpreter/interpretable.go and cel/library.go.
"""

from collections.abc import Callable, Mapping
from typing import Any

from app.dra.cel_facts import Evaluate, Names, spend
from app.dra.cel_syntax import Aborted, EvaluationError, Fold, NotJudged, OverBudget
from app.dra.cel_values import Optional, equal, kind, no_overload
from app.kube.devices import Device


def settle(value: Any) -> Any:
    return value.get() if isinstance(value, LazyValue) else value


class LazyValue:
    """A variable that is computed when it is first asked for; an error is its value, too."""

    __slots__ = ("_compute", "_failure", "_value")

    def __init__(self, compute: Callable[[], Any]) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._failure: Exception | None = None
        self._value: Any = None

    def set(self, compute: Callable[[], Any]) -> None:
        """Compute a new value at once, with the old one in force."""
        try:
            value, failure = compute(), None
        except (Aborted, OverBudget):
            raise
        except (EvaluationError, NotJudged) as problem:
            value, failure = None, problem
        self._compute, self._value, self._failure = None, value, failure

    def get(self) -> Any:
        if self._compute is not None:
            self.set(self._compute)
        if self._failure is not None:
            raise self._failure
        return self._value


def let(name: str, initial: Evaluate, result: Evaluate) -> Evaluate:
    def evaluate(device: Device, names: Names) -> Any:
        return result(device, {**names, name: LazyValue(lambda: initial(device, names))})

    return evaluate


class Loop:
    """A macro's loop over a list or a map."""

    def __init__(self, node: Fold, initial: Evaluate, condition: Evaluate, step: Evaluate, result: Evaluate) -> None:
        self._names, self._accumulator = node.names, node.accumulator
        self._initial, self._condition, self._step, self._result = initial, condition, step, result
        self._cost = max(1, (node.end - node.start) // 4)

    def run(self, sequence: Any, device: Device, names: Names) -> Any:
        """Run the loop; each round costs as much as the text of the macro is long, a unit for four characters."""
        cell = LazyValue(lambda: self._initial(device, names))
        inner = {**names, self._accumulator: cell}
        for values in self._rounds(sequence):
            spend(names, self._cost)
            inner.update(zip(self._names, values, strict=True))
            if self._condition(device, inner) is False:
                break
            cell.set(lambda: self._step(device, inner))
        return self._result(device, {**names, self._accumulator: cell})

    def _rounds(self, sequence: Any) -> list[tuple[Any, ...]]:
        if len(self._names) == 1 and isinstance(sequence, (tuple, Mapping)):
            return [(item,) for item in sequence]
        if isinstance(sequence, Mapping):
            return list(sequence.items())
        if isinstance(sequence, tuple):
            return list(enumerate(sequence))
        raise EvaluationError(f"got '{kind(sequence)}', expected iterable type")


def logical(decisive: bool, function: str) -> Callable[..., Evaluate]:
    """Make `&&` (decided by false) or `||` (decided by true): errors count only where nothing decides."""

    def make(*terms: Evaluate) -> Evaluate:
        def evaluate(device: Device, names: Names) -> bool:
            problem: Exception | None = None
            for term in terms:
                try:
                    value: Any = term(device, names)
                except (EvaluationError, NotJudged) as raised:
                    problem = _weightier(problem, raised)
                    continue
                if value is decisive:
                    return bool(decisive)
                if value is not (not decisive):
                    problem = problem or no_overload(function, value)
            if problem is not None:
                raise problem
            return not decisive

        return evaluate

    return make


def _weightier(problem: Exception | None, raised: EvaluationError | NotJudged) -> Exception:
    """Return the problem to report in the end: whatever is not judged comes before errors.

    Raises Aborted or OverBudget at once, unless something before it is not judged, which might have decided.
    """
    if isinstance(raised, (Aborted, OverBudget)):
        raise problem if isinstance(problem, NotJudged) else raised
    return (
        raised if problem is None or (isinstance(raised, NotJudged) and not isinstance(problem, NotJudged)) else problem
    )


def conditional(condition: Evaluate, then: Evaluate, otherwise: Evaluate) -> Evaluate:
    def evaluate(device: Device, names: Names) -> Any:
        chosen = condition(device, names)
        if type(chosen) is not bool:
            raise no_overload("_?_:_", chosen)
        return then(device, names) if chosen else otherwise(device, names)

    return evaluate


def not_strictly_false(operand: Evaluate) -> Evaluate:
    def evaluate(device: Device, names: Names) -> bool:
        try:
            return bool(operand(device, names) is not False)
        except (Aborted, OverBudget):
            raise
        except (EvaluationError, NotJudged):
            return True

    return evaluate


def equality(left: Evaluate, right: Evaluate) -> Evaluate:
    return lambda device, names: equal(left(device, names), right(device, names))


def inequality(left: Evaluate, right: Evaluate) -> Evaluate:
    """Make `!=`, which is true where the values cannot be compared (cel-go interpretable.go, evalNe)."""

    def evaluate(device: Device, names: Names) -> bool:
        one, other = left(device, names), right(device, names)
        try:
            return not equal(one, other)
        except EvaluationError:
            return True

    return evaluate


def or_value(optional: Evaluate, otherwise: Evaluate) -> Evaluate:
    def evaluate(device: Device, names: Names) -> Any:
        chosen = optional(device, names)
        if not isinstance(chosen, Optional):
            return chosen
        return otherwise(device, names) if chosen.value is None else chosen.value

    return evaluate


def or_optional(optional: Evaluate, otherwise: Evaluate) -> Evaluate:
    def evaluate(device: Device, names: Names) -> Any:
        chosen = optional(device, names)
        return otherwise(device, names) if isinstance(chosen, Optional) and chosen.value is None else chosen

    return evaluate
