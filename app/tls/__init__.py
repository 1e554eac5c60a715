# SPDX-License-Identifier: Apache-2.0
"""TLS certificates: our CA, serving certificates, their renewal, and the controller that keeps those of a cluster."""
