"""The entry point. Finds the command, reads its flags with absl, and turns user errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from absl import app, flags, logging

from taac import __version__
from taac.errors import OCCUPIED, RESUMABLE, Interrupted, Occupied, TaacError, nearest
from taac.machine.processes import import_elsewhere
from taac.runs.terminal import printable, shortened

COMMANDS = {
    "train": "train a method on a task into a run folder, or resume the run that is there",
    "compare": "run methods x tasks x seeds, several at a time; called again, continue",
    "sweep": "search settings of a method on a task; called again, continue",
    "play": "load a run and play greedy episodes; can record a video and draw when the agent repeats",
    "evaluate": "play a run's greedy agent with other switching thresholds, or with actions that are held or late",
    "export": "write a run's greedy policy to an ONNX or torch.export file that runs without this package",
    "report": "compare the runs below a folder: tables, verdicts, pictures and a page",
    "plot": "draw any summaries of any runs, averaged over seeds, to PNG, SVG or CSV",
    "check": "try an environment, or build an experiment and describe it without training",
    "list": "name the methods, what can be added to them, and the tasks",
}
# Commands that read the user's own gin files. The others may be called in untrusted folders, whose modules must not run.
MAY_IMPORT = ("train", "compare", "sweep", "check")
LONG = ("train", "compare", "sweep")
USAGE = (
    "usage: taac <command> [--flags]\n\ncommands:\n"
    + "\n".join(f"  {name:<11}{about}" for name, about in COMMANDS.items())
    + "\n\nflags of a command: taac <command> --help\nversion: taac --version\n"
)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs `taac <command> [flags]` and exits.

    Exit codes: 0 for success, 1 for refused input, 2 for a malformed call, 69 if another process trains in the folder,
    75 for a run that a signal stopped and that the same command resumes, and 130 for Ctrl-C in any other command.
    """
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":  # it cannot show every name
            stream.reconfigure(errors="backslashreplace")
    with (
        contextlib.redirect_stdout(BrokenPipeTolerant(sys.stdout)),
        contextlib.redirect_stderr(BrokenPipeTolerant(sys.stderr)),
    ):
        try:
            _main(list(sys.argv if argv is None else argv))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()


def _main(argv: list[str]) -> None:
    if len(argv) < 2 or argv[1] in ("-h", "--help", "help"):
        print(USAGE, end="")
        sys.exit(0 if len(argv) >= 2 else 2)
    name = argv[1]
    if name == "--version":
        print(f"taac {__version__}")
        sys.exit(0)
    if name not in COMMANDS:
        print(f"taac: no command '{name}'{nearest(name, COMMANDS)}\n\n{USAGE}", end="", file=sys.stderr)
        sys.exit(2)
    command = importlib.import_module(f"taac.commands.{name}")
    command.define_flags()
    if {"-h", "--help", "-help"} & set(argv[2:]):
        print(f"taac {name}: {COMMANDS[name]}\n")
        for module in ("taac.commands.flags", f"taac.commands.{name}"):
            print(flags.FLAGS.module_help(module).strip("\n"))
        sys.exit(0)
    logging.set_verbosity(logging.WARNING)  # users do not need the information messages of libraries
    app.run(lambda rest: _run(name, command.run, rest), argv=[f"taac {name}", *argv[2:]], flags_parser=_parse_flags)


def _parse_flags(argv: Sequence[str]) -> list[str]:
    try:
        rest = flags.FLAGS(list(argv))
        if "log_dir" in flags.FLAGS and flags.FLAGS["log_dir"].present:  # absl has this flag, and nothing here reads it
            raise flags.UnrecognizedFlagError("log_dir")
        return rest
    except flags.UnrecognizedFlagError as error:
        message = _unknown(error.flagname)
    except flags.Error as error:
        message = str(error)
    print(f"{argv[0]}: {message}\nflags: {argv[0]} --help", file=sys.stderr)
    sys.exit(2)


def _unknown(flag: str) -> str:
    """Returns the message for an unknown flag: it may be a macro, or a flag of this command that is misspelt."""
    from taac.configuration.binding import TASK_MACROS
    from taac.configuration.plain_words import of_others

    name = flag.replace("-", "_")
    modules = flags.FLAGS.flags_by_module_dict().items()
    meant = nearest(f"--{name}", [f"--{own.name}" for module, of in modules if module.startswith("taac.") for own in of])
    if "set" not in flags.FLAGS:
        return f"there is no flag --{flag}{meant}"
    if name in TASK_MACROS:
        return f"there is no flag --{flag}; settings are given as --set {name}=VALUE"
    return f"there is no flag --{flag}{of_others(name) or meant}; settings are given as --set NAME=VALUE"


def _run(name: str, run: Callable[[], None], rest: Sequence[str]) -> int:
    if len(rest) > 1:
        print(
            f"taac {name}: unexpected arguments {' '.join(rest[1:])}; use flags only, such as --task Pendulum-v1; "
            "lists have commas and no spaces (sac,taac), and settings an equals sign (--set learning_rate=1e-3)",
            file=sys.stderr,
        )
        return 2
    plain = warnings.formatwarning  # matplotlib quotes characters of a stranger's names in warnings
    warnings.formatwarning = lambda *about, **more: printable(plain(*about, **more))
    if name in MAY_IMPORT or ("trust" in flags.FLAGS and flags.FLAGS.trust):
        with contextlib.suppress(FileNotFoundError):  # the working directory may be gone
            sys.path.append(os.getcwd())  # for a gin file's `import my_module`
    elif name != "list":
        import_elsewhere("matplotlib")
    return _attempt(name, run)


def _attempt(name: str, run: Callable[[], None]) -> int:
    try:
        run()
    except (TaacError, OSError) as error:
        print(f"taac {name}: {printable(shortened(error))}", file=sys.stderr)
        return OCCUPIED if isinstance(error, Occupied) else 1
    except Interrupted as stopped:
        print(f"taac {name}: {printable(stopped)}", file=sys.stderr)
        return RESUMABLE
    except KeyboardInterrupt:
        if name in LONG:
            print(f"\ntaac {name}: interrupted; the same command resumes from the last checkpoint", file=sys.stderr)
            return RESUMABLE
        print(f"\ntaac {name}: interrupted", file=sys.stderr)
        return 130
    return 0


# Output ----------------------------------------------------------------------------------------------------------------


def open_closed_streams() -> None:
    """Opens those of the three standard streams that were closed (`taac list >&-`) on the null device.

    Otherwise the next file that is opened gets the number of one, and what is printed goes into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # by processes that this one starts
    os.close(number)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


class BrokenPipeTolerant:
    """A stream that discards its output once its reader has exited, instead of raising an error.

    A run of weeks should not end because `tee` did, or the terminal of a job that was disowned. Also, Ctrl-C ends `tee` before
    the run has saved its state.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._into_nothing():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._into_nothing():
            self._stream.flush()

    @contextlib.contextmanager
    def _into_nothing(self) -> Any:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO, errno.EBADF):
                raise
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self._stream.fileno())
            os.close(nothing)
