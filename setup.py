"""Build step: a wheel carries run_all.sh, scripts/slurm and configs of the checkout, which `r2v init` copies."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PACKAGE = "r2v/slurm/site/project"
PATTERNS = ("run_all.sh", "scripts/slurm/*.sh", "configs/**/*.yaml")


class BuildWithProject(build_py):
    """setuptools' build_py, plus the files of a new project as data of r2v.slurm.site. An editable install skips
    them: it reads those of the checkout."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._project_files().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *([] if self.editable_mode else self._project_files().values())]

    def get_source_files(self) -> list[str]:
        return [*super().get_source_files(), *self._project_files()]

    def _project_files(self) -> dict[str, str]:
        """Source in the checkout -> copy below the build folder."""
        sources = sorted(path.as_posix() for pattern in PATTERNS for path in Path().glob(pattern))
        return {source: f"{self.build_lib}/{PACKAGE}/{source}" for source in sources}


setup(cmdclass={"build_py": BuildWithProject})
