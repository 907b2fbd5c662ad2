"""The command line: ``spdl-async demo``, ``spdl-async doctor``; also ``python -m spdl_async``.

Exit codes: 0 done, 1 the run failed, 2 the command cannot be carried out as given, 130 interrupted.
Nothing heavy is imported before a command needs it, so that ``--help`` and a mistyped option
answer at once.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

INTERRUPTED = 128 + 2
"""What shells report for a program that SIGINT ended."""

READER_GONE = 128 + 13
"""What shells report for a program that SIGPIPE ended."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, not the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command; returns the exit code and never raises SystemExit.

    >>> main(["--version"])  # doctest: +ELLIPSIS
    spdl-async ...
    0
    """
    try:
        arguments, unknown = _parser().parse_known_args(argv)
        if unknown:  # the help to see is that of the command, not the whole program's
            arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        command: Callable[[argparse.Namespace], int] = arguments.command
        return command(arguments)
    except SystemExit as leaving:  # argparse: 0 after --help and --version, 2 after an error
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        print("spdl-async: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left, as `| head` does. At exit Python flushes standard
        # output once more; into nowhere, it does not complain (docs: signal, "Note on SIGPIPE").
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="spdl-async", description="Asyncio-native, thread-based data loading for ML."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    parser.set_defaults(command=lambda _: _no_command(parser), parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_demo(commands)
    doctor = commands.add_parser(
        "doctor",
        help="show what matters for speed here, and what to change",
        description="Show what matters for speed here, and what to change.",
    )
    doctor.set_defaults(command=_doctor, parser=doctor)
    return parser


def _add_demo(commands: argparse._SubParsersAction[_Parser]) -> None:
    demo = commands.add_parser(
        "demo",
        help="train a small network on pictures, and see what the pipeline does",
        description="Read, decode and resize pictures in threads, batch them, and train a small "
        "convolutional network on them; at the end see which stage was the bottleneck.",
    )
    demo.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        type=_folder,
        help="your pictures, sub-folders being classes; without it, 512 photos are made once",
    )
    demo.add_argument(
        "--size", type=_integer(1, 2048), default=224, help="height and width (default: 224)"
    )
    demo.add_argument(
        "--batch-size", type=_integer(1), default=32, help="pictures in a batch (default: 32)"
    )
    demo.add_argument(
        "--threads", type=_integer(1, 1024), help="decoding threads (default: the usable cores)"
    )
    demo.add_argument(
        "--epochs", type=_integer(1), default=2, help="passes over the pictures (default: 2)"
    )
    demo.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1 … (default: auto, CUDA where it is)"
    )
    demo.set_defaults(command=_demo, parser=demo)


def _folder(text: str) -> Path:
    """Read a folder's name: an empty one is rather an unset variable than the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty; for the current folder write .")
    return Path(text)


def _integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """Make an argparse type: an integer from ``least`` to ``most``."""

    def parse(text: str) -> int:
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        of = "of " if most is None else ""
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be a whole number {of}{bounds}, not {text!r}"
            ) from None
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"must be {bounds}, not {number}")
        return number

    return parse


def _demo(arguments: argparse.Namespace) -> int:
    from spdl_async._demo.errors import DemoError
    from spdl_async._demo.folder import check_folder

    try:
        if arguments.folder is not None:
            check_folder(arguments.folder)  # before torch is imported, which takes its time
        _run_demo(arguments)
    except DemoError as error:
        return _fail(str(error), error.exit_code)
    except ImportError as error:
        if (error.name or __package__).partition(".")[0] == __package__:
            raise
        return _fail(f"{error} (the demo needs: pip install 'spdl-async[image]')", 1)
    return 0


def _run_demo(arguments: argparse.Namespace) -> None:
    if "torch" not in sys.modules:
        # OpenMP reads this when torch loads it. Its threads would otherwise spin while they wait,
        # on the cores that decode; see openmp_finding in _doctor.py for what that costs.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from spdl_async._demo.run import DemoOptions, run_demo

    run_demo(
        DemoOptions(
            folder=arguments.folder,
            size=arguments.size,
            batch_size=arguments.batch_size,
            threads=arguments.threads,
            epochs=arguments.epochs,
            device=arguments.device,
        )
    )


def _doctor(_arguments: argparse.Namespace) -> int:
    from spdl_async._doctor import run_doctor

    return run_doctor()


def _no_command(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return 2


def _fail(message: str, code: int) -> int:
    print(f"spdl-async demo: {message}", file=sys.stderr)
    return code


def _version() -> str:
    try:
        return importlib.metadata.version("spdl-async")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    sys.exit(main())
