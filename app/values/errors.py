# SPDX-License-Identifier: Apache-2.0
"""The exceptions of gpu-usher: one class for each kind of document or peer that can be at fault.

A pod or node that does not qualify is no exception but a `Reason` (values/reasons.py). The tree shows all classes; one
that names a file is defined there, because only the routes or watches of that room raise it.

UsherError
├── BadInput            a document does not have the form that its interface defines
│   ├── MalformedPod        a Pod (or Node) whose shape Kubernetes would refuse too
│   │   └── OversizedPod        a Pod that has more of something than any pod that runs; admission denies it
│   ├── QuantityError       a text that is not a Kubernetes quantity
│   ├── VersionError        a text that is not a dotted version
│   ├── PolicyError         a policy document that cannot be used; it carries file:line:column
│   ├── SelectorError       a CEL selector of devices does not compile (dra/cel_syntax.py)
│   ├── SnapshotError       a file that is not the output of `kubectl get -o json`
│   └── WireError           a request that is answered with an HTTP error; it carries the status
│       ├── TooManyJobs         too many long requests wait: 429 (cluster/time_slices.py)
│       └── JobTimeout          a long request did not end in time: 503 (cluster/time_slices.py)
├── ApiError            the API server refused a request or did not answer; it carries the HTTP status
├── SourceError         metrics or a registry did not answer, or not as asked; it carries the outcome
├── Unreadable          an answer of the API server is no list or watch event (cluster/listing.py)
├── PatchError          an operation of our JSON Patch does not apply, which is a bug of ours (admission/json_patch.py)
├── KnowledgeError      a fact table does not fit its loader, by our mistake or by the operator's override
└── CertificateError    there is no usable serving certificate, so that the service cannot start
"""

from collections.abc import Iterable
from difflib import get_close_matches

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, GONE = 401, 403, 404, 409, 410
"""The HTTP statuses of the API server on which callers decide."""
LONGEST_GUESSED = 200
"""Characters of a word that is compared with others; difflib takes quadratic time."""


class UsherError(Exception):
    """Base class of all exceptions of gpu-usher; it is never raised itself."""


class BadInput(UsherError):
    """The caller's document is at fault; the message says what it has, what is valid, and at which path."""


class MalformedPod(BadInput):
    """A Kubernetes object whose shape is wrong; the message starts with the path."""


class OversizedPod(MalformedPod):
    """A Pod has more containers, amounts or variables than are read (kube/pod_limits.py).

    Admission denies the pod. An HTTP error would admit it unchecked under failurePolicy Ignore.
    """


class QuantityError(BadInput):
    """A text is not a Kubernetes quantity."""


class VersionError(BadInput):
    """A text is not a dotted version."""


class PolicyError(BadInput):
    """A policy document cannot be used; `problems` lists everything that is wrong with it, one line each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SnapshotError(BadInput):
    """A snapshot file is not a Kubernetes List."""


class WireError(BadInput):
    """A request cannot be read or served; it is answered with the HTTP error `status` instead of a decision."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiError(UsherError):
    """The API server refused a request or did not answer; `status` is its HTTP status, None without an answer."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class SourceError(UsherError):
    """A source of metrics or a registry of images did not answer, or with something other than what was asked of it.

    `outcome` is a word of a closed set, a label of metrics: unreachable, timeout, too_large, http_error, not_allowed,
    address, unauthorized, not_found, redirect, digest or malformed.
    """

    def __init__(self, message: str, outcome: str = "unreachable") -> None:
        super().__init__(message)
        self.outcome = outcome


class KnowledgeError(UsherError):
    """A fact table of `knowledge/`, or the operator's override of one, cannot be read."""


class CertificateError(UsherError):
    """There is no usable serving certificate."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return the end of a message that names the choice closest to a misspelt word; empty if none is close."""
    close = closest(word, choices)
    return "" if close is None else f", did you mean {close}?"


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice closest to a misspelt word; None if none is close."""
    close = get_close_matches(word, list(choices), n=1) if len(word) <= LONGEST_GUESSED else []
    return close[0] if close else None
