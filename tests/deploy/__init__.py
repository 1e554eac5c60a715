# SPDX-License-Identifier: Apache-2.0
"""What deploy/ holds is what the code means."""
