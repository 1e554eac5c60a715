# SPDX-License-Identifier: Apache-2.0
"""Replicas of the service as processes of their own."""

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.controlplane.processes import Process, free_port, wait_until

START_SECONDS = 60
"""Seconds for a start, which takes one or two."""


class Replica:
    """`gpu-usher serve --demo` with a certificate pair from a folder; its output goes to `output` or to a log.

    `words` are more flags; `shell` runs before the service in the same shell, such as `ulimit -n 100`.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        certificates: Path,
        drain_seconds: float,
        output: int | None = None,
        words: Sequence[str] = (),
        shell: str = "",
    ) -> None:
        self.tls, self.ops = free_port(), free_port()
        self._name, self._folder = name, folder
        pair = ["--cert", str(certificates / "tls.crt"), "--key", str(certificates / "tls.key")]
        ports = ["--port", str(self.tls), "--ops-port", str(self.ops), "--ui-address", "off"]
        drain = ["--drain-seconds", str(drain_seconds)]
        program = Path(sys.executable).with_name("gpu-usher")
        command = [str(program), "serve", "--demo", *pair, *ports, *drain, *words]
        self._command: Sequence[str] = ["sh", "-c", f'{shell} && exec "$@"', "sh", *command] if shell else command
        self._output = output
        self.process = self._start()

    def _start(self) -> Process:
        process = Process(self._name, self._command, self._folder / f"{self._name}.log", ENVIRONMENT, self._output)
        try:
            wait_until("it is ready", lambda: self.status() == 200, START_SECONDS, process)
        except AssertionError:
            process.stop()
            raise
        return process

    def status(self) -> int:
        """Return the HTTP status of /readyz."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ops}/readyz", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self) -> int:
        """End it by SIGTERM, and return its exit code."""
        return self.process.stop()

    def restart(self) -> None:
        """End it, and start it again on the same ports."""
        code = self.stop()
        assert code == 0, self.process.tail()
        self.revive()

    def revive(self) -> None:
        """Start it again on the same ports, after it has ended."""
        self.process = self._start()


ENVIRONMENT: Mapping[str, str] = {"PYTHONUNBUFFERED": "1", "no_proxy": "127.0.0.1"}
