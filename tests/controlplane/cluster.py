# SPDX-License-Identifier: Apache-2.0
"""A control plane on loopback: each part is its own process, so that each can be stopped and started again.

There is no kubelet: nodes are objects that the tests create, bound pods stay Pending, and `kubelets` (fleet.py)
finishes the deletion of pods. Hence no controller that judges nodes by their heartbeat runs.
"""

import base64
import datetime as dt
import json
import shutil
import signal
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from app.tls.serving_certificates import issue_if_needed
from tests.controlplane.binaries import Binaries
from tests.controlplane.gates import WANTED, api_flags, gate_flags
from tests.controlplane.kubectl import Api, Kubectl
from tests.controlplane.processes import Process, free_port, wait_until

START_SECONDS = 90
"""Seconds for the start of each part; kube-apiserver takes about 6 s."""
NODE_GRACE_SECONDS = 12
"""After so long without a heartbeat a real node (tests/realnodes) is NotReady; Kubernetes' own default is 50."""
CONTROLLERS = (
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "resourceclaim-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
)
TOKENS = {
    "admin": ("admin", "system:masters"),
    "examiner": ("examiner", ""),
    "scheduler": ("system:kube-scheduler", ""),
    "gpu-usher": ("system:serviceaccount:gpu-usher:gpu-usher", "system:serviceaccounts"),
    "controller": ("system:serviceaccount:gpu-usher:gpu-usher-controller", "system:serviceaccounts"),
    "claim-templates": ("system:serviceaccount:gpu-usher:gpu-usher-claim-templates", "system:serviceaccounts"),
    "certificates": ("system:serviceaccount:gpu-usher:gpu-usher-certificates", "system:serviceaccounts"),
}
"""Token (name-token) → user and group. Our own are the identities of deploy/, with the rights of its RBAC."""


class ControlPlane:
    """etcd and kube-apiserver, and on demand the controllers and a scheduler."""

    address = "127.0.0.1"
    names: tuple[str, ...] | None = None
    service_range = "10.0.0.0/24"
    authorization = "RBAC"
    admission_off: tuple[str, ...] = ("TaintNodesByCondition",)
    admission_on: tuple[str, ...] = ()
    controllers: tuple[str, ...] = CONTROLLERS
    tokens: Mapping[str, tuple[str, str]] = TOKENS
    apiserver_flags: Mapping[str, str] = MappingProxyType({})
    gates: tuple[str, ...] = WANTED
    """The features that are switched on where they are off by default (gates.py)."""

    def __init__(self, binaries: Binaries, folder: Path, controllers: bool = True) -> None:
        self.folder = folder
        self.binaries = binaries
        self._processes: dict[str, Process] = {}
        self.schedulers: dict[str, Scheduler] = {}
        self._etcd_url = f"http://127.0.0.1:{free_port()}"
        self.port = free_port()
        self.url = f"https://{self.address}:{self.port}"
        self._prepare()
        self.start_etcd()
        self.start_apiserver(controllers)
        self.api = Api(self.url, self.ca, "admin-token")
        self.kubectl = Kubectl(binaries.command("kubectl"), self.kubeconfig("admin"))
        if controllers:
            self._start("kube-controller-manager", self._controller_flags())
            wait_until("the default service account is made", self._has_service_account, START_SECONDS)

    def _prepare(self) -> None:
        self.ca = issue_if_needed(self.folder / "pki", dt.datetime.now(dt.UTC), self.names).ca or Path()
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (self.folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        rows = [f'{name}-token,{user},{name},"{group}"' for name, (user, group) in self.tokens.items()]
        (self.folder / "tokens.csv").write_text("\n".join(rows) + "\n", "utf-8")

    def kubeconfig(self, token: str, port: int | None = None) -> Path:
        """Write a kubeconfig for one of TOKENS; `port` is that of a relay, instead of the API server's own."""
        path = self.folder / f"{token}{port or ''}.kubeconfig"
        server = f"https://{self.address}:{port or self.port}"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(self.ca)}}],
            "users": [{"name": token, "user": {"token": f"{token}-token"}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": token}}],
            "current-context": "e2e",
        }
        path.write_text(json.dumps(document), "utf-8")
        return path

    def start_etcd(self) -> None:
        """Start etcd on its data directory, new or as it was left."""
        peer = f"http://127.0.0.1:{free_port()}"
        flags = {
            "data-dir": str(self.folder / "etcd"),
            "listen-client-urls": self._etcd_url,
            "advertise-client-urls": self._etcd_url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
            "log-level": "warn",
        }
        process = self._start("etcd", flags)
        healthy = f"{self._etcd_url}/health"
        wait_until("etcd is healthy", lambda: _get(healthy).status_code == 200, START_SECONDS, process)

    def start_apiserver(self, service_accounts: bool = True) -> None:
        """Start kube-apiserver, and wait until it is ready."""
        off = [*self.admission_off, *([] if service_accounts else ["ServiceAccount"])]
        pki = self.folder / "pki"
        flags = {
            "etcd-servers": self._etcd_url,
            "bind-address": self.address,
            "secure-port": str(self.port),
            "tls-cert-file": str(pki / "tls.crt"),
            "tls-private-key-file": str(pki / "tls.key"),
            "token-auth-file": str(self.folder / "tokens.csv"),
            "allow-privileged": "true",
            "authorization-mode": self.authorization,
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(self.folder / "sa.key"),
            "service-account-signing-key-file": str(self.folder / "sa.key"),
            "service-cluster-ip-range": self.service_range,
            "disable-admission-plugins": ",".join(off),
            "enable-admission-plugins": ",".join(self.admission_on),
            "max-requests-inflight": "3000",
            "max-mutating-requests-inflight": "1000",
            "kubelet-preferred-address-types": "InternalIP",
            **(api_flags(self.binaries.command("kube-apiserver"), self.gates) if self.gates else {}),
            **self.apiserver_flags,
        }
        process = self._start("kube-apiserver", flags)
        context = ssl.create_default_context(cafile=str(self.ca))
        ready = f"{self.url}/readyz"
        wait_until("kube-apiserver is ready", lambda: _get(ready, context).status_code == 200, START_SECONDS, process)

    def compact(self) -> None:
        """Let etcd forget all history, as kube-apiserver does every five minutes."""
        now = httpx.post(f"{self._etcd_url}/v3/kv/range", json={"key": "AA=="}, trust_env=False).json()
        answer = httpx.post(
            f"{self._etcd_url}/v3/kv/compaction", json={"revision": now["header"]["revision"]}, trust_env=False
        )
        assert answer.status_code == 200, answer.text

    def stored(self, key: str) -> bytes:
        """Return the value that etcd has of a key, as kube-apiserver wrote it."""
        encoded = base64.b64encode(key.encode()).decode()
        answer = httpx.post(f"{self._etcd_url}/v3/kv/range", json={"key": encoded}, trust_env=False).json()
        return base64.b64decode(answer["kvs"][0]["value"])

    def _controller_flags(self) -> dict[str, str]:
        return {
            "kubeconfig": str(self.kubeconfig("admin")),
            "controllers": ",".join(self.controllers),
            "service-account-private-key-file": str(self.folder / "sa.key"),
            "root-ca-file": str(self.ca),
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(free_port()),
            "kube-api-qps": "500",
            "kube-api-burst": "1000",
            "node-monitor-grace-period": f"{NODE_GRACE_SECONDS}s",
            **(gate_flags(self.binaries.command("kube-controller-manager"), self.gates)),
        }

    def start_scheduler(self, configuration: Mapping[str, Any], name: str = "kube-scheduler") -> "Scheduler":
        """Start kube-scheduler with a KubeSchedulerConfiguration, whose client settings are filled in."""
        document = {
            **configuration,
            "clientConnection": {"kubeconfig": str(self.kubeconfig("scheduler")), "qps": 5000, "burst": 5000},
            "leaderElection": {"leaderElect": False},
        }
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps(document), "utf-8")
        port = free_port()
        flags = {
            "config": str(path),
            "bind-address": "127.0.0.1",
            "secure-port": str(port),
            "tls-cert-file": str(self.folder / "pki" / "tls.crt"),
            "tls-private-key-file": str(self.folder / "pki" / "tls.key"),
            "authorization-always-allow-paths": "/metrics,/healthz,/readyz,/livez",
            **(gate_flags(self.binaries.command("kube-scheduler"), self.gates)),
        }
        process = self._start(name, flags, "kube-scheduler")
        scheduler = Scheduler(process, f"https://127.0.0.1:{port}", self.ca, configuration)
        wait_until(f"{name} is ready", scheduler.ready, START_SECONDS, process)
        self.schedulers[name] = scheduler
        return scheduler

    def _start(self, name: str, flags: Mapping[str, str], program: str | None = None) -> Process:
        command = [*self.binaries.command(program or name), *(f"--{key}={value}" for key, value in flags.items())]
        self._processes[name] = Process(name, command, self.folder / f"{name}.log")
        return self._processes[name]

    def stop(self, name: str) -> None:
        """Stop one part by SIGKILL, as a crash does: on SIGTERM kube-apiserver waits for its watchers to go."""
        self.schedulers.pop(name, None)
        self._processes.pop(name).stop(signal.SIGKILL)

    def close(self) -> None:
        """Stop all parts, first those that depend on others."""
        self.api.client.close()
        for name in reversed(list(self._processes)):
            self.stop(name)

    def _has_service_account(self) -> bool:
        path = "/api/v1/namespaces/default/serviceaccounts/default"
        return self.api.client.get(path).status_code == 200


class Scheduler:
    """A running kube-scheduler, and its KubeSchedulerConfiguration."""

    def __init__(self, process: Process, url: str, ca: Path, configuration: Mapping[str, Any]) -> None:
        self.process = process
        self.configuration = configuration
        self._url = url
        self._context = ssl.create_default_context(cafile=str(ca))

    def ready(self) -> bool:
        """Tell whether its caches are filled."""
        return _get(f"{self._url}/readyz", self._context).status_code == 200

    def metrics(self) -> str:
        """Return the text of /metrics."""
        return _get(f"{self._url}/metrics", self._context).text


def _get(url: str, context: ssl.SSLContext | None = None) -> httpx.Response:
    try:
        return httpx.get(url, verify=context or True, trust_env=False, timeout=5)
    except httpx.HTTPError as error:
        raise ConnectionError(str(error)) from error


@contextmanager
def control_plane(
    binaries: Binaries, controllers: bool = True, make: type[ControlPlane] = ControlPlane
) -> Iterator[ControlPlane]:
    """Run a control plane for as long as the block lasts; its folder is deleted with it, unless the block fails."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-usher-e2e-"))
    plane = make(binaries, folder, controllers)
    try:
        yield plane
    finally:
        plane.close()
        shutil.rmtree(folder, ignore_errors=True)
