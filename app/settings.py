# SPDX-License-Identifier: Apache-2.0
"""Settings of `gpu-usher serve`; each is a flag and an environment variable GPU_USHER_<FLAG>.

See docs/reference/listeners.md#routes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Role = Literal["all", "admission", "extender"]
Recount = Literal["auto", "true", "false"]
FilterAnswer = Literal["all", "best"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How one process serves. Ports: 0 takes a free one."""

    demo: bool = False
    """Serve an embedded fleet."""
    demo_fleet: str = "mixed"
    """Which one."""
    snapshots: tuple[Path, ...] = ()
    """Files of `kubectl get nodes,pods,namespaces,runtimeclasses -A -o json`."""
    policies: Path | None = None
    """Directory of policy files; None: the shipped ones."""
    knowledge: Path | None = None
    """Directory of your own fact tables, laid over the shipped ones."""
    role: Role = "all"
    kubeconfig: Path | None = None
    context: str | None = None
    """How to reach a live cluster; without both: our pod's service account, else the user's own kubeconfig."""
    namespace: str = "gpu-usher"
    """Our own, where policies may be kept in ConfigMaps."""
    listen: str | None = None
    """Address of the TLS and operations listeners; None: loopback, or every address where a live cluster calls."""
    ops_listen: str | None = None
    """Address of the operations listener alone; None: the same. Beside a scheduler only probes come from elsewhere."""
    port: int = 8443
    ops_port: int = 8080
    ui_address: str = "127.0.0.1:8081"
    """`off` turns the web UI listener off."""
    certs: Path = Path("certs")
    """Directory in which a CA and a certificate are made where no valid ones are."""
    cert: Path | None = None
    key: Path | None = None
    """Your own certificate and key; both or none."""
    client_ca: Path | None = None
    """CAs of callers' own certificates; None: callers are not asked for any."""
    client_subjects: tuple[str, ...] = ()
    """Common names that may call /scheduler/*, where there is a client_ca."""
    require_webhook_client_cert: bool = False
    """Ask it of the API server too, which must be told to show one (AdmissionConfiguration)."""
    prometheus: str | None = None
    """URL of a Prometheus with DCGM's metrics; None: not asked."""
    prometheus_token_file: Path | None = None
    """File with a bearer token for it."""
    dcgm_exporters: tuple[str, ...] = ()
    """URLs of DCGM exporters, asked themselves; every address of a name is one."""
    recount: Recount = "auto"
    filter_answer: FilterAnswer = "all"
    shadow: bool = False
    """Answer allow, no patch, all nodes; log the real verdict."""
    drain_seconds: float | None = None
    """How long all is answered after SIGTERM, with /readyz 503; None: 5 with a live cluster, else 0."""
    decision_log: str = "off"
    """File, or `stdout`, for what is needed to decide each request again; `off`: nowhere."""
    tracing: bool = False
    """Send a span of each request to where the environment's OTEL_EXPORTER_OTLP_ENDPOINT says."""
    log_json: bool = True

    @property
    def live(self) -> bool:
        """Tell whether a live cluster is followed."""
        return not self.demo and not self.snapshots

    @property
    def host(self) -> str:
        """Give the address of the TLS and operations listeners."""
        return self.listen or ("::" if self.live else "127.0.0.1")

    @property
    def draining_seconds(self) -> float:
        """Give the seconds to answer on after SIGTERM: HA-03's 5 where callers come through endpoints that lag."""
        return (5.0 if self.live else 0.0) if self.drain_seconds is None else self.drain_seconds

    @property
    def ops_host(self) -> str:
        """Give the address of the operations listener."""
        return self.ops_listen or self.host

    @property
    def recounting(self) -> bool:
        """Tell whether filter repeats the scheduler's counts: yes where no live scheduler has counted."""
        return self.recount == "true" or (self.recount == "auto" and not self.live)

    @property
    def own_certificate(self) -> tuple[Path, Path] | None:
        """Give the operator's own pair; None if we make one."""
        return (self.cert, self.key) if self.cert and self.key else None
