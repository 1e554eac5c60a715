# SPDX-License-Identifier: Apache-2.0
"""Exceptions: bad input, told apart by whose document it was. An expected "no" is a Reason, not an error.

UsherError
├── BadInput            somebody sent something that is not what the interface says
│   ├── MalformedPod        a Pod (or Node) whose shape Kubernetes would refuse too
│   │   └── OversizedPod        one that has more of something than any pod that runs; admission denies it
│   ├── QuantityError       not a Kubernetes quantity
│   ├── VersionError        not a dotted version
│   ├── PolicyError         a policy document, with file:line:column
│   ├── SnapshotError       a `kubectl get -o json` file
│   └── WireError           a request body; carries the HTTP status it is answered with
├── ApiError            the API server did not give what was asked; carries its HTTP status
├── SourceError         metrics that could not be had, or are not what they should be
├── KnowledgeError      a fact table that does not fit its loader: our bug, or the operator's override
└── CertificateError    no usable certificate: there is no start without one
"""


class UsherError(Exception):
    """Base of all our exceptions; never raised itself."""


class BadInput(UsherError):
    """The caller's document is at fault; the message says what was found, what was wanted, where."""


class MalformedPod(BadInput):
    """A Kubernetes object whose shape is wrong; the message starts with the path."""


class OversizedPod(MalformedPod):
    """A Pod of more containers, amounts or variables than are looked at.

    Admission denies it: an HTTP error would let it in, unguarded, under failurePolicy Ignore.
    """


class QuantityError(BadInput):
    """Not a Kubernetes quantity."""


class VersionError(BadInput):
    """Not a dotted version."""


class PolicyError(BadInput):
    """A policy document that cannot be used; `problems` lists every finding, one line each."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class SnapshotError(BadInput):
    """A snapshot file that is not a Kubernetes List."""


class WireError(BadInput):
    """A request body that is answered with an HTTP error instead of a decision."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ApiError(UsherError):
    """The API server's refusal, or none at all. `status`: HTTP's; None where no answer came."""

    def __init__(self, status: int | None, message: str) -> None:
        super().__init__(message)
        self.status = status


class SourceError(UsherError):
    """A source of metrics that gave none, or something else."""


class KnowledgeError(UsherError):
    """A fact table that cannot be read."""


class CertificateError(UsherError):
    """No usable serving certificate."""
