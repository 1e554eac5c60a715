# SPDX-License-Identifier: Apache-2.0
"""GPU facts as data: products, MIG profiles, CUDA and drivers, images, resource families."""
