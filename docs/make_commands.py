"""Write docs/commands.md, the reference of all commands, from the command line itself.

python docs/make_commands.py
"""

from pathlib import Path

import typer

from shiftcal.cli import app

PATH = Path(__file__).with_name("commands.md")
_HEAD = """# Commands

Made by `python docs/make_commands.py` from the command line itself; `shiftcal COMMAND --help` prints the same. Exit
codes: 0 done, 1 failed on the way (the message says where the checkpoint is), 2 wrong use or wrong input, found before
anything was written; 130, 143 and 129 after Ctrl-C, SIGTERM and SIGHUP. `gate` has its own: 0 passed, 1 failed, 2 could
not be judged. Errors are one line; with `SHIFTCAL_TRACEBACK=1` in the environment those of other code show where they
come from.
"""


def reference() -> str:
    """Write the whole document."""
    root = typer.main.get_command(app)
    parts = [_HEAD]
    for name in sorted(root.commands):
        command = root.commands[name]
        inner = getattr(command, "commands", None)
        found = {f"{name} {key}": inner[key] for key in sorted(inner)} if inner else {name: command}
        parts += [_command(title, one) for title, one in found.items()]
    return "\n".join(parts)


def _command(name: str, command: object) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    words = " ".join(_argument(p) for p in arguments)
    text = [f"## shiftcal {name}", "", f"`shiftcal {name} {words}{' [OPTIONS]' if options else ''}`".replace("  ", " ")]
    text += ["", _paragraphs(command.help or ""), ""]
    if arguments or options:
        text += ["| | |", "|---|---|"]
        text += [f"| `{_argument(p)}` | {_cell(p.help)} |" for p in arguments]
        text += [f"| {', '.join(f'`{o}`' for o in (*p.opts, *p.secondary_opts))} | {_option(p)} |" for p in options]
    return "\n".join([*text, ""])


def _argument(parameter: object) -> str:
    name = (parameter.metavar or parameter.name).strip("[]")
    return name if parameter.required else f"[{name}]"


def _option(parameter: object) -> str:
    text = _cell(parameter.help)
    if parameter.required:
        return f"{text} Required."
    default = parameter.default
    if default in (None, "", False, True, []) or callable(default) or not isinstance(default, str | int | float):
        return text
    return f"{text} By default `{default}`."


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", r"\|").replace("<", "&lt;")


def _paragraphs(text: str) -> str:
    """Keep paragraphs; examples are code."""
    found = []
    for paragraph in text.strip().split("\n\n"):
        lines = " ".join(paragraph.split())
        start, example, code = lines.partition("Example: ")
        found.append(f"{start}Example: `{code}`" if example else lines.replace("<", "&lt;"))
    return "\n\n".join(found)


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
