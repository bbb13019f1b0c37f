"""The console: rows of text as an aligned table, for every command that prints one.

text_table([("job", "state"), ("bc", "done")])        # job  state
                                                      # bc   done
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from io import StringIO


def text_table(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), gap: int = 2) -> str:
    """Rows as lines of equal columns, each as wide as its widest cell; `right` names the columns (from 0) that are
    aligned to the right. Cells are printed as they are: no markup, no wrapping, no trailing blanks."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[str(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, gap, 0, 0))
    for column in range(max(len(row) for row in cells)):
        table.add_column(justify="right" if column in right else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    # As wide as any table: a narrow terminal must not cut what a pipe or a file would keep.
    screen = Console(file=StringIO(), width=100_000, color_system=None, force_terminal=False)
    with screen.capture() as capture:
        screen.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())
