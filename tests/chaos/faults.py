# SPDX-License-Identifier: Apache-2.0
"""What may go wrong around us, by number, and what is to be seen then. Tests name the number in their docstrings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. `cluster`: what loopback cannot show of it stands in deploy/README.md."""

    number: int
    what: str
    expected: str
    cluster: bool = False


FAULTS = (
    Fault(1, "API server away when we start", "admission serves, the extender is not ready; tries back off"),
    Fault(2, "API server away later", "ready stays, admission goes on, a stale view places nothing"),
    Fault(3, "watch half open", "given up after its silence, opened again"),
    Fault(4, "410 Gone in any of its forms", "listed again; the old view serves until the new one is whole"),
    Fault(5, "watch that closes at once, again and again", "at most six tries in 30 s"),
    Fault(6, "a page of a list fails", "the whole list again; nothing of half a list counts"),
    Fault(7, "objects with unknown fields and nulls", "read; what is unknown is passed over"),
    Fault(8, "an event that cannot be read", "counted, no longer trusted, listed again; the others live on"),
    Fault(9, "our token expires", "read again at 401"),
    Fault(10, "the scheduler asks about a node unknown to us", "that node refused with its reason, the others judged"),
    Fault(11, "GPU labels missing", "`GPUFactsMissing` or as `unknownFacts` says, never another reason"),
    Fault(12, "policy file half written", "the last good set whole; /readyz and /statusz show file:line"),
    Fault(13, "policy valid as YAML and wrong", "as 12, with what was meant (CEL: void, there is none)"),
    Fault(
        14, "all policy files gone", "the last good set stays, by its hash; a ConfigMap deleted is its policies deleted"
    ),
    Fault(
        15, "a rule of ours fails", "void for CEL, there is none; a bug is a 500 Status, counted; failurePolicy decides"
    ),
    Fault(16, "a value mistaken for true", "void for CEL; YAML 1.1's yes, on, off are refused where they stand"),
    Fault(17, "two policies set one field", "refused if of one priority; order of files changes nothing"),
    Fault(18, "a patch of ours that does not apply", "it never leaves: 500 Status, counted; failurePolicy decides"),
    Fault(19, "another webhook changes the pod after us", "called again, we repair what is new and add nothing twice"),
    Fault(20, "another webhook removes what we add", "each answer the same; the pod does not grow"),
    Fault(21, "huge pod", "answered; the patch is as small as for a small one"),
    Fault(22, "body over the limit", "413, the connection closed, memory bounded"),
    Fault(23, "Content-Length lies, chunks never end", "closed when time is over, or 400"),
    Fault(24, "slow callers", "closed in time; the others are served"),
    Fault(25, "huge header", "431 and closed at 64 KiB"),
    Fault(26, "more connections than descriptors", "no crash; those in hand are served, new ones as room comes"),
    Fault(27, "malformed JSON", "400 with a Status, never 500"),
    Fault(28, "JSON nested without end", "400, the next is served"),
    Fault(29, "JSON with 100,000 keys", "time grows with length, not its square"),
    Fault(30, "AdmissionReview of another shape, kind or operation", "400 without a uid; else allowed untouched"),
    Fault(31, "AdmissionReview v1beta1", "400 that names the field to change"),
    Fault(32, "unknown fields", "answered as without them, and left alone"),
    Fault(33, "odd characters", "one printable line to people, valid JSON to logs"),
    Fault(34, "the same request twice", "the same answer, one promise"),
    Fault(35, "pod without a name yet", "logged by its generateName"),
    Fault(36, "amounts in every notation", "read as Kubernetes does; what is no whole GPU is refused in words"),
    Fault(37, "init containers and sidecars", "counted at the hungriest moment"),
    Fault(38, "replica killed", "what was in its hands fails; later calls go to the other; `failurePolicy` decides"),
    Fault(39, "SIGTERM under load", "no request fails though callers come for 1.5 s more"),
    Fault(40, "second signal, hung handler", "the end at once, or when patience is over"),
    Fault(41, "event loop blocked", "its stack logged, counted; /livez fails after 10 s"),
    Fault(42, "certificate expired", "/readyz fails, an error a minute"),
    Fault(43, "certificate and key do not match", "the old pair stays, tried again every 5 s"),
    Fault(44, "CA rotated", "two CAs trusted meanwhile: no call fails", True),
    Fault(45, "caBundle wiped", "written again within 10 s"),
    Fault(46, "clocks that differ", "what is issued is valid an hour back; renewal by wall clock", True),
    Fault(47, "machine asleep over the renewal", "renewed at the next turn after it wakes", True),
    Fault(48, "two keepers of certificates", "no leaf served that nobody trusts"),
    Fault(49, "disk full, streams that nobody reads", "lines dropped and counted, requests served"),
    Fault(50, "memory short", "bodies, memos and queues bounded; resident memory flat", True),
    Fault(51, "extender called with whole nodes", "answered with the very nodes given"),
    Fault(52, "5,000 nodes all refused", "an answer below 1 MiB, few reasons, a readable event"),
    Fault(53, "extender too slow for the scheduler", "the pod waits with the time-out as its reason, CPU pods do not"),
    Fault(54, "extender away", "GPU pods wait and say why, CPU pods do not"),
    Fault(55, "scorers at their limits", "integers 0 to 10, never NaN"),
    Fault(56, "the scheduler asks one replica, then the other", "the same bytes"),
    Fault(57, "two schedulers want one node", "overrun seen and counted; the kubelet refuses the later pod", True),
    Fault(58, "the whole cluster starts cold", "nodes, leases, requests, system pods never wait for us", True),
    Fault(59, "uninstalled in the wrong order", "GPU pods alone are held; one command frees them"),
    Fault(60, "a tenant goes around us", "denied, or gains nothing"),
    Fault(61, "policies of a newer version after a rollback", "no start, in words; from the cluster: last good, shown"),
    Fault(
        62,
        "replicas with different policies",
        "each says its hash in metrics and log; an alert after two minutes",
        True,
    ),
    Fault(63, "network between API server and us breaks", "calls fail at once, and go on when it is back", True),
    Fault(64, "connection kept to a replica that ends", "answered with `Connection: close` while draining", True),
)
