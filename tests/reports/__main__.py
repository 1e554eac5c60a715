# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.reports`: write tests/results/reports.md."""

from tests.reports.situations import PAGE, page

PAGE.write_text(page(), "utf-8")
