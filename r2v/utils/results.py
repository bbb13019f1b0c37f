"""The results manager: reads one `structured_results/` folder and makes its files again.

    rm = ResultsManager("results/webarena_noisy/structured_results")
    rm.generate_main_table_csv()      # also generate_latex_table(), generate_llm_summary()

A folder without `manifest.json` is not finished, and a file that differs from what it lists is refused. How the files
are rendered is the business of `r2v.evaluation.tables.files`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from r2v.data.schema import parse_json
from r2v.errors import InputError
from r2v.evaluation.tables.files import BUNDLE, RESULTS_MANIFEST, render, sha256_of
from r2v.storage.files import write_text


class ResultsManager:
    """The files of one `structured_results/` folder, and how to make them again.

    Raises InputError where the folder is unfinished or a file is not the one its manifest lists.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        listed = self._json(RESULTS_MANIFEST, self._text(RESULTS_MANIFEST, "the stage that writes it has not finished"))
        try:
            self.files = {str(entry["path"]): str(entry["sha256"]) for entry in listed["files"]}
        except (LookupError, TypeError) as error:
            raise self._malformed(RESULTS_MANIFEST, f"no list of files and hashes ({error!r})") from None

    def _text(self, name: str, remedy: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(f"{self.folder / name}: no such file; {remedy}") from None
        except (OSError, ValueError) as error:
            raise self._malformed(name, f"not a text file ({error})") from None

    def _malformed(self, name: str, problem: str) -> InputError:
        return InputError(f"{self.folder / name}: {problem}; run r2v evaluate again")

    def _json(self, name: str, text: str) -> dict[str, Any]:
        try:
            parsed: dict[str, Any] = parse_json(text)
        except ValueError as error:
            raise self._malformed(name, f"not JSON: {error}") from error
        return parsed

    def read(self, name: str) -> str:
        """The text of a listed file, checked against its hash."""
        if name not in self.files:
            raise InputError(f"{self.folder / RESULTS_MANIFEST} lists no {name}; it lists {', '.join(self.files)}")
        text = self._text(name, "run r2v evaluate again")
        if sha256_of(text) != self.files[name]:
            raise InputError(
                f"{self.folder / name}: not the file that {RESULTS_MANIFEST} lists (changed by hand?); "
                "run r2v evaluate again"
            )
        return text

    def bundle(self) -> dict[str, Any]:
        """Every figure, as `eval_bundle.json` has it."""
        return self._json(BUNDLE, self.read(BUNDLE))

    def _generate(self, name: str) -> Path:
        write_text(self.folder / name, render(self.bundle())[name])
        return self.folder / name

    def generate_main_table_csv(self) -> Path:
        """Write main_table.csv again; a second call gives the same bytes."""
        return self._generate("main_table.csv")

    def generate_latex_table(self) -> Path:
        """Write main_table.tex again: a booktabs table to \\input."""
        return self._generate("main_table.tex")

    def generate_llm_summary(self) -> Path:
        """Write llm_summary.json again."""
        return self._generate("llm_summary.json")
