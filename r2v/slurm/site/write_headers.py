"""The site profile written into files: its directives in every header, its modules in env.sh; undone without trace.

    #SBATCH --constraint=gpu  # site            an added line
    ## site: #SBATCH --gres=gpu:a100:2          a removed line
    # >>> site nersc 1a2b3c4d                   the block in env.sh, to the next # <<< site

    set_words(["profile=nersc", "account=m1234"])   # `r2v cluster set`: a profile, then a directive of every header
    set_words(["train_policy.mem=120G"])            # of one script
    set_words([])                                   # scripts/slurm/site.yaml again, after an edit

`sbatch scripts/slurm/...` and `run_all` read the same headers. A header is restored before it is written, so that
writing twice changes nothing and another profile starts from the shipped header.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from r2v.errors import UsageError, nearest
from r2v.slurm.site import headers
from r2v.slurm.site.directives import gpu_count, gpu_kind, minutes
from r2v.slurm.site.headers import Resources
from r2v.slurm.site.script_text import ENVIRONMENT, read_script, script_lines, write_script
from r2v.slurm.site.site_profile import SITE, SiteProfile, project_profile, shipped
from r2v.storage.files import write_text

_ADDED, _REMOVED = "  # site", "## site: "
_GPUS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
_BLOCK = re.compile(r"# >>> site (\S+) (\w+)\r?\n.*?# <<< site\r?\n", re.S)


def set_words(words: Sequence[str], root: Path = Path(), *, takes: Callable[[str, str], bool]) -> list[Path]:
    """Apply KEY=VALUE words; returns the changed files. `takes(directive, value)` is True if the cluster's sbatch knows
    the directive (`r2v.slurm.client.client.takes_option`). Raises UsageError before a change, except for a directive
    that conflicts with the profile just written."""
    pairs = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    if len(pairs) < len(words):
        raise UsageError(f"cluster set wants KEY=VALUE, each once; keys profile, {', '.join(headers.SETTABLE)}")
    profile = pairs.pop("profile", None)
    for key, value in pairs.items():
        name = key.rpartition(".")[2]
        if name not in headers.SETTABLE and not takes(name, value):
            raise UsageError(f"cluster set {name}={value}: {nearest(name, ('profile', *headers.SETTABLE))}")
    changed = write(root) if not words else []
    changed += choose(profile, root) if profile is not None else []
    return list(dict.fromkeys([*changed, *headers.rewrite(headers.scripts(root), pairs)]))


def choose(name: str, root: Path = Path()) -> list[Path]:
    """Make the project's site.yaml from a shipped profile and write it into the headers; returns the changed files.
    Raises UsageError for an unknown name, or if an edited site.yaml would be lost."""
    shipped(name)
    path = root / SITE
    if path.exists() and project_profile(root).base == name:
        return write(root)
    if not says_nothing(root) and read_script(path) != _own(project_profile(root).base):
        raise UsageError(f"{path} was edited; move it away, or write `base: {name}` into it and type r2v cluster set")
    write_text(path, _own(name))
    return [path, *write(root)]


def says_nothing(root: Path) -> bool:
    """True if a project has no site.yaml, or one of comments alone, as `r2v init` leaves it."""
    path = root / SITE
    return not path.exists() or all(line.startswith("#") for line in read_script(path).split("\n") if line.strip())


def write(root: Path = Path()) -> list[Path]:
    """Write the project's profile into the headers and env.sh; returns the files that changed."""
    site = project_profile(root)
    before = {path: read_script(path) for path in headers.scripts(root)}
    drafts = {path: _written(text, path, site) for path, text in before.items()}
    if (root / ENVIRONMENT).exists():
        before[root / ENVIRONMENT] = read_script(root / ENVIRONMENT)
        drafts[root / ENVIRONMENT] = _environment(before[root / ENVIRONMENT], site)
    changed = [path for path, text in drafts.items() if text != before[path]]
    for path in changed:
        write_script(path, drafts[path])
    return changed


def require_written(root: Path = Path()) -> SiteProfile:
    """Return the project's profile. Raises UsageError if it is not written into the headers."""
    site = project_profile(root)
    path = root / ENVIRONMENT
    match = _BLOCK.search(read_script(path)) if path.exists() else None
    written = match[2] if match else SiteProfile().mark  # an empty profile leaves no block
    if (root / SITE).exists() and path.exists() and written != site.mark:
        raise UsageError(f"{SITE} has changed since it was written into the headers; type r2v cluster set")
    return site


def _own(name: str) -> str:
    return (
        "# What this site wants of every job; begins from the profile named, docs/slurm-sites.md has all settings.\n"
        f"# After an edit: r2v cluster set\nbase: {name}\n"
    )


def _environment(text: str, site: SiteProfile) -> str:
    bare = _BLOCK.sub("", text)
    if site == SiteProfile():
        return bare
    first, rest = re.match(r"((?:#[^\n]*\n)*)(.*)", bare, re.S).groups()  # type: ignore[union-attr]
    lines = "".join(f"{line}\n" for line in site.modules)
    return f"{first}# >>> site {site.base} {site.mark}\n{lines}# <<< site\n{rest}"


def _written(text: str, path: Path, site: SiteProfile) -> str:
    """Return a script with the site's header."""
    lines = [line.removeprefix(_REMOVED) for line in script_lines(text) if not line.rstrip("\n").endswith(_ADDED)]
    bare = "".join(lines)
    request = headers.parsed(path, bare)
    if site == SiteProfile():
        return bare
    site_directives, present = site.directives(gpus=0 if site.cpu_only else request.gpus), set[str]()
    done: list[str] = []
    for line in lines:
        options = headers.options_of(path, line)
        present |= set(options or ())
        after = None if options is None else _options(options, site, site_directives)
        done += [line] if after == options else [_REMOVED + line, *_lines(line, after or {})]
    last = max((at for at, line in enumerate(done) if line.startswith(("#SBATCH", f"{_REMOVED}#SBATCH"))), default=0)
    added = {name: value for name, value in site_directives.items() if value is not None and name not in present}
    # Without a directive for GPUs, R2V still has to know how many a node holds.
    unnamed = request.gpus and not (site.gpus or site.cpu_only)
    whole = [f"#R2V any --node-gpus={request.gpus}{_ADDED}\n"] if unnamed else []
    return "".join([*done[: last + 1], *_lines("#SBATCH", added), *whole, *done[last + 1 :]])


def _options(options: dict[str, str], site: SiteProfile, site_directives: dict[str, str | None]) -> dict[str, str]:
    """Return the options of one header line with the site's changes."""
    after: dict[str, str] = {}
    for name, value in options.items():
        if name in site_directives:
            if (site_value := site_directives[name]) is not None:
                after[name] = site_value
        elif name in _GPUS and (name != "gres" or gpu_count(value)):
            counted = value if name == "gres" else f"gpu:{value}"
            directive = site.spelled_gpus(gpu_kind({name: value}), gpu_count(counted))
            after |= dict([directive] if directive else [])
        elif name == "time" and 0 < minutes(site.max_time) < (minutes(value) or 10**9):
            after[name] = site.max_time
        elif name != headers.HELPERS or site.arrays:
            after[name] = value
    return after


def _lines(like: str, options: dict[str, str]) -> list[str]:
    """Return a header line for each option, for the same job as the line `like`."""
    head = re.match(r"#SBATCH|#R2V\s+\w+", like)
    assert head is not None
    return [f"{head[0]} {option}{_ADDED}\n" for option in Resources(directives=options).sbatch_args()]
