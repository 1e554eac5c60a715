# SPDX-License-Identifier: Apache-2.0
"""How a selector can fail: it does not compile, it fails for a device, or it is not judged here."""

from app.values.errors import BadInput


class SelectorError(BadInput):
    """A selector does not compile; the message has Kubernetes' words, or those of cel-go."""


class EvaluationError(Exception):
    """A selector fails for a device, as for an attribute that the device does not have. `&&` and `||` absorb it."""


class Aborted(EvaluationError):
    """An evaluation fails as a whole, because cel-go panics there; neither `&&` nor `||` absorbs that."""


class NotJudged(Exception):
    """An expression, or the search for devices, is beyond what is judged here; the text says why.

    `false && …` and `true || …` need no answer of an operand that is not judged.
    """


class OverBudget(NotJudged):
    """An evaluation would take too long; nothing absorbs that, since Kubernetes fails it as a whole at a limit, too."""
