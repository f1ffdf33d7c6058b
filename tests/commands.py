"""The command line, called in this process."""

from pathlib import Path

from typer.testing import CliRunner

from shiftcal.cli import app


def invoke(*words: str | Path) -> tuple[int, str, str]:
    """Call a command: its exit code, standard output and standard error; what is not an exit is raised."""
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def done(*words: str | Path) -> str:
    """Call a command that has to succeed; returns its standard output."""
    code, stdout, stderr = invoke(*words)
    assert code == 0, stderr
    return stdout
