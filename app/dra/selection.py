# SPDX-License-Identifier: Apache-2.0
"""Which devices the selectors of a class and of a request select, each expression asked once about each device."""

from collections.abc import Callable, Iterable

from app.dra.cel_errors import NotJudged as NotJudged
from app.dra.cel_errors import SelectorError
from app.dra.selectors import compile_selector
from app.kube.devices import Device


class ClaimError(Exception):
    """Something is wrong with a claim or a class: kube-scheduler gives up on the pod, whatever other nodes have.

    `expression` is the selector that is wrong, if one is, and `device` the device on which it fails; None where it is
    not valid for any.
    """

    def __init__(self, text: str, expression: str = "", device: Device | None = None) -> None:
        super().__init__(text)
        self.expression, self.device = expression, device


DeviceTest = Callable[[Device], bool]
"""A compiled CEL expression. It raises ClaimError where it fails on a device, and NotJudged where it is not known."""
Compile = Callable[[str], DeviceTest]
"""Compiles a CEL expression. It raises ClaimError for one that is no valid selector, and NotJudged."""


def compile_cel(expression: str) -> DeviceTest:
    """Compile a CEL expression into a test of devices.

    Raises ClaimError.
    """
    try:
        selector = compile_selector(expression)
    except SelectorError as error:
        raise ClaimError(f"the selector {shortened(expression)} is not valid: {error}", expression) from error

    def test(device: Device) -> bool:
        judgement = selector.judge(device)
        if judgement.error is not None:
            text = f"the selector {shortened(expression)} fails on device {device.name}: {judgement.error}"
            raise ClaimError(text, expression, device)
        if judgement.matches is None:
            raise NotJudged(f"the selector {shortened(expression)}: {judgement.not_judged}")
        return judgement.matches

    return test


def shortened(expression: str) -> str:
    """Write an expression on one line, and no more of it than a person reads."""
    text = " ".join(expression.split())
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


LONGEST_SHOWN = 160


class Selection:
    """Compiled expressions, and what each said about each device; devices are kept as long as this is."""

    def __init__(self, compile_expression: Compile | None = None) -> None:
        self._compile = compile_expression or compile_cel
        self._tests: dict[str, DeviceTest] = {}
        self._answers: dict[str, dict[Device, bool]] = {}

    def test(self, expression: str, device: Device) -> bool:
        """Tell whether an expression selects a device.

        Raises ClaimError, NotJudged.
        """
        answers = self._answers.setdefault(expression, {})
        answer = answers.get(device)
        if answer is None:
            if expression not in self._tests:
                self._tests[expression] = self._compile(expression)
            answer = answers[device] = self._tests[expression](device)
        return answer

    def test_all(self, expressions: Iterable[str], device: Device) -> bool:
        """Tell whether all expressions select a device; those after the first that does not are not asked.

        Raises ClaimError, NotJudged.
        """
        return all(self.test(expression, device) for expression in expressions)
