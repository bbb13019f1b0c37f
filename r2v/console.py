r"""The console: rows of text as an aligned table, and text that a terminal shows and never obeys.

text_table([("job", "state"), ("bc", "done")])        # job  state
                                                      # bc   done
printable("episode \x1b[2J")                          # episode \x1b[2J

Episodes, tags, model replies and providers' errors were written by others: an escape sequence in them could clear the
screen, set its title, hide text or forge a line. Streams filter all that commands print (`filtered_streams`), the log's
formatter and the progress bars what they write; what no stream guards, as the cells of a CSV file, calls `printable`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, cast

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""A change of colour, as other programs' logs are full of: dropped, for it says nothing."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, or turns the direction of writing
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations, tags
    "\ud800-\udfff]"  # surrogates: bytes of a name that is not UTF-8
)


def printable(text: str) -> str:
    r"""The text with every character that a terminal would obey instead of show, written as its escape: \x1b.

    Tabs and newlines stay; changes of colour are dropped. Printable text comes back as it is.

    >>> printable("done\x1b[2J \x1b[31mred\x1b[0m \u202egpj.exe")
    'done\\x1b[2J red \\u202egpj.exe'
    """
    return _CONTROL.sub(_escape, _COLOUR.sub("", text)) if _CONTROL.search(text) else text


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()


class FilteredStream:
    """A text stream that writes `printable` text; all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text, printable. Characters that the stream's encoding lacks are written as escapes."""
        safe = printable(text)
        try:
            self._stream.write(safe)
        except UnicodeEncodeError:
            encoding = self._stream.encoding or "ascii"
            self._stream.write(safe.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def unfiltered(stream: Any) -> Any:
    """The stream itself, for what must move the cursor: a progress bar, whose words its maker has filtered."""
    return stream._stream if isinstance(stream, FilteredStream) else stream


@contextmanager
def filtered_streams() -> Iterator[None]:
    """While the block runs, everything printed to stdout and stderr is `printable`."""
    stdout, stderr = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast(Any, FilteredStream(unfiltered(stdout))),
        cast(Any, FilteredStream(unfiltered(stderr))),
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr


def text_table(rows: Iterable[Sequence[str]], *, right: Collection[int] = (), gap: int = 2) -> str:
    """Rows as lines of equal columns, each as wide as its widest cell; `right` names the columns (from 0) that are
    aligned to the right. Cells are `printable` and on one line: no markup, no wrapping, no trailing blanks."""
    from rich.cells import cell_len

    cells = [[printable(str(cell)).replace("\n", "\\n").expandtabs() for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip_longest(*cells, fillvalue="")]
    lines = []
    for row in cells:
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=False)]
        aligned = [blanks[at] + cell if at in right else cell + blanks[at] for at, cell in enumerate(row)]
        lines.append((" " * gap).join(aligned).rstrip())
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """A duration given in seconds.

    >>> duration(45.2), duration(480), duration(14400)
    ('45 s', '8 min', '4.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def figures_line(figures: Mapping[str, Any]) -> str:
    """Figures as a line of a log: `n_tasks 22, auroc 0.42, margin: mean 0.1`. Lists, and what is none, are left to the
    file that holds them."""
    parts = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            parts += [f"{name}: {inner}"] if (inner := figures_line(value)) else []
        elif isinstance(value, (str, int, float)):
            parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(parts)
