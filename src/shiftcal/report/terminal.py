"""The tables on a terminal."""

from __future__ import annotations

from shiftcal.records import RunRecord
from shiftcal.report.table import caption_in, cells_of, columns_in, tables_of
from shiftcal.report.text import for_terminal


def print_table(records: list[RunRecord]) -> None:
    """Print the tables on the terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Grid

    tables = tables_of(records)
    columns = columns_in(tables)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)  # a file has no width to fit
    for table in tables:
        title = for_terminal(table.title)
        grid = Grid(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1))
        grid.add_column("method", no_wrap=True)
        for column in columns:
            grid.add_column(column[0], justify="right", no_wrap=True)
        for row, cells in cells_of(table, columns, "[bold]{}[/]"):
            grid.add_row(for_terminal(row.method), *cells)
        console.print(grid)
    console.print(caption_in(tables), style="dim")
