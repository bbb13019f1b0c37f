"""Checks of what worlds need beyond this checkout: WebArena's interpreter, its language data, and its sites.

On the login node and inside a job alike, for a site may answer the one and not the other. Nothing is said where
WebArena is neither installed nor named by a variable; where no variable names a site, what lacks is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator

from r2v.envs.webarena.addresses import site_names
from r2v.envs.webarena.check import check_set_up, check_sites
from r2v.envs.webarena.home import is_installed
from r2v.errors import UsageError
from r2v.slurm.doctor.check_results import Finding, bad, ok, warn

_REMEDY = "mend it, and `r2v webarena check` looks again (docs/webarena.md)"


def worlds() -> Iterator[Finding]:
    """Versions and language data of WebArena, and every site of every set that variables name."""
    sets = site_names()
    if not sets and not is_installed():
        return
    for sound, line in check_set_up():
        lacks = bad if sets else warn
        yield ok(f"webarena: {line}") if sound else lacks(f"webarena: {line}", _REMEDY)
    for name in sets:
        which = f"webarena {name}" if name else "webarena"
        try:
            for sound, line in check_sites(name):
                yield ok(f"{which}: {line}") if sound else bad(f"{which}: {line}", _REMEDY)
        except UsageError as error:
            yield bad(str(error), _REMEDY)
