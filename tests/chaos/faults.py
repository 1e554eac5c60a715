# SPDX-License-Identifier: Apache-2.0
"""The faults that can happen around gpu-usher, by number, and what gpu-usher does then.

Tests name the number in their docstrings ("fault 24"); `python -m tests.chaos` writes tests/results/chaos.md.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tests import docstrings
from tests.docstrings import TESTS


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault; `cluster` is whether deploy/README.md has a row for the part that loopback cannot show."""

    number: int
    what: str
    expected: str
    cluster: bool = False


FAULTS = (
    Fault(1, "the API server is away when gpu-usher starts",
          "admission serves, the extender is not ready, and tries back off"),
    Fault(2, "the API server goes away later",
          "replicas stay ready, admission goes on, and a stale view places nothing"),
    Fault(3, "a watch is half open", "it is given up after a time of silence, and opened again"),
    Fault(4, "410 Gone in any of its forms",
          "the kind is listed again; the old view serves until the new one is whole"),
    Fault(5, "a watch closes at once, again and again", "there are at most six tries in 30 s"),
    Fault(6, "a page of a list fails", "the whole list is read again; nothing of half a list counts"),
    Fault(7, "objects have unknown fields and nulls", "they are read, and what is unknown is passed over"),
    Fault(8, "an event cannot be read", "it is counted, the object is no longer trusted, and the kind is listed again"),
    Fault(9, "the service account's token expires", "it is read again after a 401"),
    Fault(10, "the scheduler asks about an unknown node",
          "that node is refused with a reason of its own; the others are judged"),
    Fault(11, "GPU labels are missing", "`GPUFactsMissing`, or as `unknownFacts` says; never another reason"),
    Fault(12, "a policy file is half written",
          "the last good set stays whole; /readyz and /statusz show file and line"),
    Fault(13, "a policy is valid YAML and wrong", "as fault 12, and the message names what was meant"),
    Fault(14, "all policy files are gone",
          "the last good set stays; policies of a ConfigMap that is deleted are deleted"),
    Fault(15, "a rule fails by a bug", "a 500 with a Status, counted; `failurePolicy` decides"),
    Fault(16, "a value is mistaken for true",
          "the words that YAML 1.1 reads as booleans (yes, on, off) are refused where they stand"),
    Fault(17, "two policies set one field", "they are refused if of one priority; the order of files changes nothing"),
    Fault(18, "a patch does not apply", "it never leaves: a 500 with a Status, counted; `failurePolicy` decides"),
    Fault(19, "another webhook changes the pod afterwards",
          "the second call repairs what is new, and adds nothing twice"),
    Fault(20, "another webhook removes what was added", "each answer is the same, and the pod does not grow"),
    Fault(21, "a pod is huge", "it is answered, and the patch is as small as for a small one"),
    Fault(22, "a body is over the limit", "413, the connection is closed, and memory stays bounded"),
    Fault(23, "Content-Length lies, or chunks never end",
          "the connection is closed when its time is over, or answered with 400"),
    Fault(24, "callers are slow", "their connections are closed in time; the others are served"),
    Fault(25, "a header is huge", "431, and the connection is closed at 64 KiB"),
    Fault(26, "there are more connections than descriptors",
          "nothing crashes: those in hand are served, new ones as room comes"),
    Fault(27, "JSON is malformed", "a 400 with a Status, never a 500"),
    Fault(28, "JSON is nested without end", "a 400, and the next request is served"),
    Fault(29, "JSON has 100,000 keys", "the time grows with the length, not with its square"),
    Fault(30, "an AdmissionReview has another shape, kind or operation",
          "400 without a uid; otherwise the object is allowed untouched"),
    Fault(31, "an AdmissionReview is v1beta1", "a 400 that names the field to change"),
    Fault(32, "fields are unknown", "the answer is as without them, and they are left alone"),
    Fault(33, "names and messages have odd characters", "people read one printable line, logs stay valid JSON"),
    Fault(34, "the same request comes twice", "the answer is the same, and there is one promise"),
    Fault(35, "a pod has no name yet", "the log names its generateName"),
    Fault(36, "amounts come in every notation",
          "they are read as Kubernetes does; what is no whole GPU is refused in words"),
    Fault(37, "a pod has init containers and sidecars", "GPUs are counted at the moment when the pod needs most"),
    Fault(38, "a replica is killed", "its requests fail, later calls go to the others; `failurePolicy` decides"),
    Fault(39, "SIGTERM comes under load", "no request fails although callers come for another 1.5 s"),
    Fault(40, "a second signal comes, or a handler hangs", "the process ends at once, or when the grace is over"),
    Fault(41, "the event loop is blocked", "its stack is logged and counted; /livez fails after 10 s"),
    Fault(42, "the served certificate has expired", "/readyz fails, and an error is logged every minute"),
    Fault(43, "certificate and key do not match",
          "the old pair stays in service, and the new one is tried again every 5 s"),
    Fault(44, "the CA is rotated", "two CAs are trusted meanwhile, and no call fails", True),
    Fault(45, "the caBundle is wiped", "it is written again within 10 s"),
    Fault(46, "clocks differ", "certificates are valid from an hour before; renewal follows the wall clock", True),
    Fault(47, "the machine sleeps over the renewal",
          "the certificate is renewed at the next turn after it wakes", True),
    Fault(48, "two keepers of certificates run", "no leaf is served that nobody trusts"),
    Fault(49, "the disk is full, or nobody reads the output", "lines are dropped and counted, and requests are served"),
    Fault(50, "memory is short", "bodies, caches and queues are bounded, and resident memory stays flat", True),
    Fault(51, "the extender is called with whole nodes", "the answer has the very nodes that were given"),
    Fault(52, "all of 5,000 nodes are refused",
          "the answer is below 1 MiB, has few reasons, and the event is readable"),
    Fault(53, "the extender is too slow for the scheduler",
          "the pod waits with the time-out as its reason; CPU pods do not wait"),
    Fault(54, "the extender is away", "GPU pods wait and say why; CPU pods do not wait"),
    Fault(55, "scorers are at their limits", "scores are integers from 0 to 10, never NaN"),
    Fault(56, "the scheduler asks one replica, then another", "both give the same bytes"),
    Fault(57, "two schedulers want one node",
          "the overrun is seen and counted; the kubelet refuses the later pod", True),
    Fault(58, "the whole cluster starts cold",
          "nodes, leases, requests and system pods never wait for gpu-usher", True),
    Fault(59, "gpu-usher is uninstalled in the wrong order", "only GPU pods are held up, and one command frees them"),
    Fault(60, "a tenant goes around gpu-usher", "the tenant is denied, or gains nothing"),
    Fault(61, "policies are of a newer version after a rollback",
          "the last good set stays, or what can be read; the error is shown"),
    Fault(62, "replicas have different policies",
          "each tells its hash in metrics and log; an alert fires after two minutes", True),
    Fault(63, "the network between API server and gpu-usher breaks",
          "calls fail at once, and go on when it is back", True),
    Fault(64, "a connection is kept to a replica that ends",
          "it is answered with `Connection: close` while the replica drains", True),
)  # fmt: skip


NAMED = re.compile(r"\b[Ff]aults? (\d+(?:(?:, | and |, and )\d+)*)")
SECTION = "## Faults to try on a real cluster"


def numbers(docstring: str) -> frozenset[int]:
    """Read the numbers of the faults that a docstring names."""
    return frozenset(int(number) for mention in NAMED.findall(docstring) for number in re.findall(r"\d+", mention))


def proofs() -> Mapping[str, frozenset[int]]:
    """Map each test that proves faults, as pytest calls it, to their numbers."""
    return docstrings.proofs(NAMED, numbers)


def on_a_real_cluster() -> Mapping[int, str]:
    """Read the rows of deploy/README.md: the rest of the row by the number of the fault."""
    text = (TESTS.parent / "deploy" / "README.md").read_text("utf-8").partition(SECTION)[2].partition("\n## ")[0]
    return {int(number): row for number, row in re.findall(r"^\| (\d+) \| (.+) \|$", text, re.MULTILINE)}
