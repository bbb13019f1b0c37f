"""Pipeline: the stages of a configuration, run in this process.

pipeline = Pipeline(load_config("configs/mrp.yaml"))
pipeline.run(until="router")
pipeline.run()                                   # skips stages that are up to date
pipeline.results().to_frame()
bundle = pipeline.export("outputs/bundles/desk")
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from r2v.config import Config
from r2v.errors import UsageError
from r2v.library.results import Results
from r2v.serve.bundle.manifest import Bundle, read_bundle

if TYPE_CHECKING:
    from r2v.pipeline.run import StageResult


class Pipeline:
    """The pipeline of one configuration, whose stages `run` plays in this process. root: the folder of `data`,
    `outputs` and `results`.

    Raises UsageError for a value that is no configuration, such as a file's name.
    """

    def __init__(self, config: Config, *, root: str | Path = ".") -> None:
        if not isinstance(config, Config):
            raise UsageError(f"Pipeline of {config!r:.60}: takes a configuration, such as load_config('FILE')")
        self.config, self.root = config, Path(root)

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the configuration's stages, in order."""
        from r2v.pipeline.graph import selection

        return tuple(row.name for row in selection(self.config)[0])

    def run(
        self, *, start: str | None = None, until: str | None = None, force: Sequence[str] = ()
    ) -> list[StageResult]:
        """Run each stage from `start` to `until` (default: all) that is not up to date, and return the results.

        force: stages to run in any case. Raises R2VError where `r2v run` ends with an error.
        """
        from r2v.pipeline.run import run_here

        return run_here(self.config, start=start, until=until, force=force, root=self.root)

    def results(self) -> Results:
        """Return the published tables. Raises InputError if the evaluation has not ended."""
        from r2v.pipeline.inputs import read_published

        return Results(read_published(self.config, "evaluate", self.root).folder)

    def export(self, folder: str | Path) -> Bundle:
        """Write the evaluated pair as a bundle and return it. Raises InputError as `r2v export` does."""
        from r2v.pipeline.write_bundle import write_bundle

        write_bundle(self.config, Path(folder), self.root)
        return read_bundle(Path(folder))
