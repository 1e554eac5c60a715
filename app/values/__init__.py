# SPDX-License-Identifier: Apache-2.0
"""Values that everything else uses: errors, reasons, quantities, versions, label requirements."""
