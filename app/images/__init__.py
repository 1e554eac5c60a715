# SPDX-License-Identifier: Apache-2.0
"""What images carry: references, documents of registries, the client that reads them, and the queue before it."""
