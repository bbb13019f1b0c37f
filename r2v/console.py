r"""Console output: aligned tables, and text without control sequences.

text_table([("job", "state"), ("bc", "done")])        # job  state
                                                      # bc   done
printable("episode \x1b[2J")                          # episode \x1b[2J

Episodes, tags, model replies and providers' errors come from outside: an escape sequence in them could clear the
screen, set its title, hide text or forge a line. Output of commands passes through `filtered_streams`; the log's
formatter and the progress bars filter their own; other output, such as cells of a CSV file, calls `printable`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, cast

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
"""Changes of colour, frequent in logs of other programs; dropped."""
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"  # invisible, or changes the direction of writing
    "\ufff9-\ufffb\U000e0000-\U000e007f"  # annotations, tags
    "\ud800-\udfff]"  # surrogates: bytes of a name that is not UTF-8
)


def printable(text: str) -> str:
    r"""Return the text with control characters of a terminal replaced by their escapes, such as \x1b.

    Tabs and newlines are kept, changes of colour dropped. Printable text is returned unchanged.

    >>> printable("done\x1b[2J \x1b[31mred\x1b[0m \u202egpj.exe")
    'done\\x1b[2J red \\u202egpj.exe'
    """
    return _CONTROL.sub(_escape, _COLOUR.sub("", text)) if _CONTROL.search(text) else text


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode()


class FilteredStream:
    """Text stream that writes `printable` text and delegates everything else to `stream`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the printable text. Characters that the stream's encoding lacks become escapes."""
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
    """Return the underlying stream, for progress bars, which move the cursor and filter their own text."""
    return stream._stream if isinstance(stream, FilteredStream) else stream


@contextmanager
def filtered_streams() -> Iterator[None]:
    """Filter stdout and stderr by `printable` while the block runs."""
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
    """Return rows as lines of aligned columns, each as wide as its widest cell. `right`: columns (from 0) aligned to
    the right. Cells are `printable` and on one line: no markup, no wrapping, no trailing blanks."""
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
    """Return a duration in seconds as text.

    >>> duration(45.2), duration(480), duration(14400)
    ('45 s', '8 min', '4.0 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def figures_line(figures: Mapping[str, Any]) -> str:
    """Return figures as a line of text: `n_tasks 22, auroc 0.42, margin: mean 0.1`. Lists and None are omitted."""
    parts = []
    for name, value in figures.items():
        if isinstance(value, Mapping):
            parts += [f"{name}: {inner}"] if (inner := figures_line(value)) else []
        elif isinstance(value, (str, int, float)):
            parts.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    return ", ".join(parts)
