"""The tables on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from shiftcal.records import RunRecord
from shiftcal.report.table import Table, caption_in, cells_of, columns_in, tables_of
from shiftcal.report.text import for_terminal

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Grid


def print_table(records: list[RunRecord]) -> None:
    """Print the tables on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    tables = tables_of(records)
    columns = columns_in(tables)
    console = console_of()

    def grid_of(table: Table, count: int) -> Grid:
        title = for_terminal(table.title)
        grid = Grid(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
        grid.add_column("method", no_wrap=True)
        for column in columns[:count]:
            grid.add_column(column[0], justify="right", no_wrap=True)
        for row, cells in cells_of(table, columns[:count], "[bold]{}[/]"):
            grid.add_row(for_terminal(row.method), *cells)
        return grid

    count = min((fitting(console, len(columns), partial(grid_of, table)) for table in tables), default=0)
    for table in tables:
        console.print(grid_of(table, count))
    tell_left_out(console, [column[0] for column in columns[count:]])
    console.print(caption_in(tables), style="dim")


def console_of() -> Console:
    """Make a console for tables; a file or a pipe has no width to fit."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=120)


def fitting(console: Console, count: int, grid_of: Callable[[int], Grid]) -> int:
    """Tell how many of a grid's columns fit a terminal: numbers that are cut are wrong ones."""
    wide = console.options.update(width=10_000)
    while count > 1 and grid_of(count).__rich_measure__(console, wide).maximum > console.width:
        count -= 1
    return count


def tell_left_out(console: Console, columns: Sequence[str]) -> None:
    """Print which columns a terminal has no room for."""
    if columns:
        console.print(f"Too narrow for {', '.join(columns)}: the report has them.", style="dim")
