# SPDX-License-Identifier: Apache-2.0
"""The front proxy of a control plane, whose certificate kube-apiserver shows to aggregated APIs."""

from tests.authorities import Authority, make_authority, write_leaf
from tests.controlplane.cluster import ControlPlane

FRONT_PROXY = "front-proxy-client"
CLUSTER_ROLES = "clusterrole-aggregation-controller"
"""The controller that gives view, edit and admin the rules of the roles with their labels."""


class FrontProxy(ControlPlane):
    """A control plane whose API server has a front proxy's certificate; `authority` has signed it."""

    authority: Authority

    def _prepare(self) -> None:
        super()._prepare()
        self.authority = make_authority("front proxy CA")
        folder = self.folder / "front-proxy"
        folder.mkdir()
        write_leaf(self.authority, folder, FRONT_PROXY)
        (folder / "ca.crt").write_text(self.authority.pem, "ascii")
        self.apiserver_flags = {
            "requestheader-client-ca-file": str(folder / "ca.crt"),
            "requestheader-allowed-names": FRONT_PROXY,
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": str(folder / "tls.crt"),
            "proxy-client-key-file": str(folder / "tls.key"),
        }
