"""The scripts of `taac completion` for bash, zsh and fish."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

FOLDERS = ("root_dir", "output_dir")
FILES = (
    "gin_file", "output", "batch", "anchors", "published", "record_file", "record_demonstrations", "film_strip", "timeline",
)  # fmt: skip


class Words(NamedTuple):
    """What a shell completes."""

    commands: dict[str, str]  # with what they do
    flags: dict[str, list[str]]  # of each command, in their order, without dashes
    switches: set[str]  # flags without a value
    choices: dict[str, list[str]]  # of flags with known values
    lists: set[str]  # of these, flags that take several, separated by commas


BASH = r"""# Completes taac in bash. Made by `taac completion bash`.
_taac() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" kept="" choices=""
    if [[ $current == "=" ]]; then current=""
    elif [[ $previous == "=" ]]; then previous="${COMP_WORDS[COMP_CWORD-2]}"; [[ $previous == --* ]] || return
    fi
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then COMPREPLY=($(compgen -W "@COMMANDS@" -- "$current")); return; fi
    case "$previous" in
@CHOICES@
        @FOLDERS@) local IFS=$'\n'; COMPREPLY=($(compgen -d -- "$current")); compopt -o filenames 2>/dev/null; return ;;
        @FILES@) local IFS=$'\n'; COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames 2>/dev/null; return ;;
        @VALUED@) return ;;
    esac
    if [[ -n $choices ]]; then
        case "$previous" in
            @LISTS@) if [[ $current == *,* ]]; then kept="${current%,*},"; current="${current##*,}"; fi ;;
        esac
        COMPREPLY=($(compgen -P "$kept" -W "$choices" -- "$current"))
        if [[ $previous == --set || $previous == --search ]]; then
            COMPREPLY=("${COMPREPLY[@]/%/=}"); compopt -o nospace 2>/dev/null
        fi
        return
    fi
    case "${COMP_WORDS[1]}" in
@FLAGS@
    esac
    COMPREPLY=($(compgen -W "$choices" -- "$current"))
}
complete -F _taac taac
"""

ZSH = r"""#compdef taac
# Completes taac in zsh. Made by `taac completion zsh`.
_taac() {
    local previous=${words[CURRENT-1]}
    local -a choices
    if (( CURRENT == 2 )); then compadd -- @COMMANDS@; return; fi
    if [[ $PREFIX == --*=* ]]; then previous=${PREFIX%%=*}; compset -P 1 '*='; fi
    case $previous in
        @LISTS@) compset -P '*,' ;;
    esac
    case $previous in
@CHOICES@
        @FOLDERS@) _files -/; return ;;
        @FILES@) _files; return ;;
        @VALUED@) return ;;
    esac
    if (( $#choices )); then
        if [[ $previous == --set || $previous == --search ]]; then compadd -S '=' -- $choices; else compadd -- $choices; fi
        return
    fi
    case ${words[2]} in
@FLAGS@
    esac
    compadd -- $choices
}
if [[ ${funcstack[1]} == _taac ]]; then _taac "$@"; else compdef _taac taac; fi
"""


def fish(words: Words) -> str:
    lines = ["# Completes taac in fish. Made by `taac completion fish`.", "complete -c taac -f"]
    for command, about in words.commands.items():
        told = about.replace("\\", "\\\\").replace("'", "\\'")
        lines.append(f"complete -c taac -n __fish_use_subcommand -a {command} -d '{told}'")
    lines.append(f"complete -c taac -n '__fish_seen_subcommand_from completion' -a '{' '.join(SCRIPTS)}'")
    for command, names in words.flags.items():
        for name in names:
            begin = f"complete -c taac -n '__fish_seen_subcommand_from {command}' -l {name}"
            if name in words.choices:
                found = [f"{choice}=" if name in ("set", "search") else choice for choice in words.choices[name]]
                many = f"(__fish_append , {' '.join(found)})" if name in words.lists else " ".join(found)
                lines.append(f"{begin} -x -a '{many}'")
            elif name in FOLDERS:
                lines.append(f"{begin} -x -a '(__fish_complete_directories)'")
            else:
                lines.append(begin + ("" if name in words.switches else " -r -F" if name in FILES else " -x"))
    return "\n".join(lines) + "\n"


def _filled(script: str, assignment: str, words: Words) -> str:
    """Fills in a script of bash or zsh, where a list of words is assigned in another way."""
    every = {name for names in words.flags.values() for name in names}
    valued = every - words.switches - set(words.choices) - {*FILES, *FOLDERS}
    return (
        script.replace("@COMMANDS@", " ".join(words.commands))
        .replace("@CHOICES@", _cases(_flags_by_values(words), assignment))
        .replace("@FLAGS@", _cases(_dashed(words), assignment))
        .replace("@LISTS@", _any(words.lists))
        .replace("@FOLDERS@", _any(FOLDERS))
        .replace("@FILES@", _any(FILES))
        .replace("@VALUED@", _any(valued))
    )


SCRIPTS: dict[str, Callable[[Words], str]] = {
    "bash": functools.partial(_filled, BASH, 'choices="{}"'),
    "zsh": functools.partial(_filled, ZSH, "choices=({})"),
    "fish": fish,
}


def _cases(named: dict[str, Iterable[str]], assignment: str) -> str:
    return "\n".join(f"        {pattern}) {assignment.format(' '.join(names))} ;;" for pattern, names in named.items() if names)


def _flags_by_values(words: Words) -> dict[str, Iterable[str]]:
    """Pattern of flags -> the values that they share."""
    shared: dict[tuple[str, ...], list[str]] = {}
    for flag, values in words.choices.items():
        shared.setdefault(tuple(values), []).append(flag)
    return {_any(flags): values for values, flags in shared.items()}


def _dashed(words: Words) -> dict[str, Iterable[str]]:
    dashed: dict[str, Iterable[str]] = {command: [f"--{name}" for name in names] for command, names in words.flags.items()}
    return {**dashed, "completion": list(SCRIPTS)}


def _any(flags: Iterable[str]) -> str:
    return "|".join(f"--{flag}" for flag in sorted(flags))
