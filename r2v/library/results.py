"""Results: the tables of an evaluation as data frames, and its episodes.

results = Results("results/mrp")
results.to_frame()                    # main_table.csv: a row for each method and condition
results.to_frame("comparisons")
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from r2v.data.episode import Episode
from r2v.errors import EnvironmentFault, InputError
from r2v.utils.results import ResultsManager

if TYPE_CHECKING:
    import pandas

_TABLES = "structured_results"


class Results:
    """A finished results folder. Raises InputError if it is unfinished or a file was changed."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manager = ResultsManager(self.folder / _TABLES)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables, for `to_frame`."""
        return tuple(name.removesuffix(".csv") for name in self._manager.files if name.endswith(".csv"))

    def to_frame(self, table: str = "main_table") -> pandas.DataFrame:
        """Return a table as a data frame. Raises InputError for an unknown name, EnvironmentFault without pandas."""
        if table not in self.tables:
            raise InputError(f"{table}: no table of {self.folder}; it has {', '.join(self.tables)}")
        try:
            import pandas
        except ImportError:
            raise EnvironmentFault("to_frame needs pandas: pip install 'r2v[train]', or pandas alone") from None
        return pandas.read_csv(io.StringIO(self._manager.read(f"{table}.csv")))

    def figures(self) -> dict[str, Any]:
        """Return all figures of `eval_bundle.json`."""
        return self._manager.bundle()

    def episodes(self) -> Iterator[Episode]:
        """Return the executed episodes behind the tables. Raises InputError for a missing or damaged file."""
        from r2v.evaluation.setup import read_setup, stored_episodes

        return stored_episodes(self.folder, read_setup(self.folder))
