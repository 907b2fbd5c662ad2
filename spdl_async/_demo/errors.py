"""What the command line answers in one line instead of a traceback."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the message is the line that the user reads (exit code 1)."""

    exit_code = 1


class UsageError(DemoError):
    """The demo was asked for something that cannot be: no such folder, no such device (code 2)."""

    exit_code = 2
