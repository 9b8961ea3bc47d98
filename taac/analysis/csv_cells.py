"""Cells of tables that are opened in spreadsheets."""

from __future__ import annotations

from typing import Any


def cell(value: Any) -> Any:
    """A value as it is, but a text that a spreadsheet would run as a formula behind an apostrophe, which makes it text.

    Source: OWASP, "CSV Injection".
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value
