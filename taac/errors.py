"""The one exception for what a user can mend."""


class TaacError(ValueError):
    """Bad input: the message says what was given, what was expected and what to do.

    Commands print it without a traceback and exit with a code that is not 0.
    """
