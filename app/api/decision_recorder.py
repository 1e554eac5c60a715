# SPDX-License-Identifier: Apache-2.0
"""The decision log: optionally records for each decision all that is needed to repeat it. Off by default.

A line holds the Pod of the request, reduced to what decides: of its environment the variables that are read, of its
annotations ours, no commands, and only memory-backed volumes. The file is readable by its owner alone and bounded in
size. A line that finds no room in the queue or on the disk is counted and dropped; no request waits for it.
"""

import contextlib
import hashlib
import logging
import logging.handlers
import os
import queue
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from app.admission.redaction import redact_pod
from app.admission.review_targets import review_target_of
from app.admission.reviewed_pod import PodForm
from app.api.decision_line import Decision
from app.api.preemption import meta_victims
from app.api.wire import decode_extender_args, decode_json, decode_node, decode_preemption_args, encode
from app.telemetry.logs import REPLICA, DroppingHandler, Writer
from app.values.errors import BadInput

VERSION = 1
FILE_BYTES = 64 << 20
FILES = 4
"""At most 256 MiB in all, some 100,000 pods asked about 100 nodes each (a guess, not measured)."""
MOST_QUEUED_RECORDS = 256
"""Lines that wait for the writing thread; further ones are dropped and counted. A line about 5,000 nodes has 60 kB, so
at most 16 MB wait."""


class Recorder:
    """Writes lines to a file that is rotated by size, or to stdout, in a thread of its own. `stop` must be called."""

    def __init__(self, target: str) -> None:
        """Open `target`, a file or `stdout`.

        Raises BadInput if the file cannot be written.
        """
        try:
            self._handler = _Counting(sys.stdout) if target == "stdout" else _Rotated(Path(target))
        except OSError as error:
            raise BadInput(f"--decision-log {target}: {error.strerror}") from error
        self._queue = DroppingHandler(queue.Queue(MOST_QUEUED_RECORDS))
        self._writer = Writer(self._queue.queue, self._handler)
        self._writer.start()

    @property
    def unrecorded(self) -> int:
        """The number of lines that were dropped."""
        return self._queue.dropped + self._handler.failed

    def note(
        self, verb: str, asked: bytes | Mapping[str, Any], answer: bytes, decision: Decision, generation: int
    ) -> None:
        """Record a decision, unless its object is not reviewed, or was too large to be read.

        `asked` is the AdmissionRequest, or the body of an extender's call, which has been read without error before.
        """
        if isinstance(asked, Mapping):
            request = _reduced_review(asked)
        else:
            request = None if verb in ("mutate", "validate") else _reduced_extender_args(verb, asked)
        if request is None:
            return
        line = {
            "v": VERSION,
            "verb": verb,
            "replica": REPLICA,
            "uid": decision.uid,
            "policy_hash": decision.policy_hash,
            "generation": generation,
            **request,
            "decision": decision.outcome,
            "reasons": {code.name: number for code, number in decision.reasons.items()},
            "actions": list(decision.actions),
            "answer": hashlib.sha256(answer).hexdigest() if verb not in ("mutate", "validate") else "",
        }
        self._queue.handle(logging.makeLogRecord({"msg": encode(line).decode()}))

    def stop(self) -> None:
        """Write the lines in the queue and close the file; a disk that hangs is not waited for."""
        if self._writer.finish():
            with contextlib.suppress(OSError):  # lines that the disk did not take are counted already
                self._handler.close()


def open_recorder(target: str) -> Recorder | None:
    """Open the recorder; None for `off`. `target` is a file, `stdout` or `off`.

    Raises BadInput.
    """
    return None if target == "off" else Recorder(target)


class _Counting(logging.StreamHandler[TextIO]):
    """Writes lines as they are, and counts those that the stream does not take."""

    failed = 0

    def handleError(self, _record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        self.failed += 1


class _Rotated(logging.handlers.RotatingFileHandler):
    """Writes lines to rotated files that only their owner may read, and counts those that the disk does not take."""

    failed = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")

    def _open(self) -> Any:
        return open(
            self.baseFilename, self.mode, encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600)
        )

    def handleError(self, _record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        self.failed += 1


def _reduced_review(request: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the recorded members of an AdmissionReview; None for kinds and operations that are not reviewed."""
    subject = review_target_of(request)
    if subject is None:
        return None
    members: dict[str, Any] = {
        "namespace": request.get("namespace") or "default",
        "form": subject.form.name,
        "pod": redact_pod(subject.document),
    }
    if subject.form is not PodForm.Pod:
        members["settled"] = sorted(subject.existing_ephemeral)
        members["before"] = None if subject.old_template is None else redact_pod(subject.old_template)
    return members


def _reduced_extender_args(verb: str, body: bytes) -> dict[str, Any]:
    """Return the recorded members of an extender request: the pod and the names of nodes, or the UIDs of victims."""
    if verb == "preempt":
        preemption = decode_preemption_args(body)
        victims = preemption.NodeNameToMetaVictims
        if victims is None:
            victims = {name: meta_victims(name, pods) for name, pods in (preemption.NodeNameToVictims or {}).items()}
        return {"pod": redact_pod(decode_json(bytes(preemption.Pod))), "victims": victims}
    args = decode_extender_args(body)
    if args.NodeNames is not None:
        names, whole = args.NodeNames, False
    else:
        raws = (args.Nodes.items if args.Nodes else None) or []
        names, whole = [decode_node(raw).metadata.name for raw in raws], True
    return {"pod": redact_pod(decode_json(bytes(args.Pod))), "nodes": names, "whole_nodes": whole}
