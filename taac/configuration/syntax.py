"""What is wrong with a line that gin cannot read, in terms of what was meant."""

from __future__ import annotations

import re

_NAME = r"(?:\w+/)*[A-Za-z_]\w*(?:\.\w+)*"
_NUMBER = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_CONSTANTS = {"true": "True", "false": "False", "none": "None", "null": "None", "yes": "True", "no": "False"}


def advice(line: str) -> str | None:
    """Returns what to write instead of a line of gin with bad syntax; None if it cannot be told."""
    statement = re.fullmatch(rf"\s*({_NAME})\s*(=?)\s*(.*?)\s*", line)
    if statement is None:
        return None
    name, equals, value = statement.groups()
    if not equals:
        return f"a binding is NAME = VALUE: {name} = {value}" if re.fullmatch(rf"{_NUMBER}|'.*'|\".*\"", value) else None
    if not value:
        return f"a value is missing: {name} = VALUE"
    if value.lower() in _CONSTANTS:
        return f"write {name} = {_CONSTANTS[value.lower()]}"
    if re.fullmatch(r"[#(]#?(\s*(\*\*|[*/+-])\s*[#()]+)+", re.sub(_NUMBER, "#", value)):
        return f"a value is not calculated: write the number itself after {name} ="
    if re.fullmatch(rf"{_NUMBER}(?:\s*,\s*{_NUMBER})*\s*,?", value) and "," in value:
        return f"put a list in parentheses: {name} = ({value})"
    if re.match(r"[A-Za-z./~_]", value) and not re.search(r"['\"()\[\]{}]", value):
        return f"put text in quotes: {name} = {value!r}"
    return None
