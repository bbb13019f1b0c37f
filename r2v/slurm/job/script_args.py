"""Script arguments: the words after a script's name on an sbatch line, as options of `r2v`.

    sbatch scripts/slurm/01_collect.sh webarena 500 "1 2 3" --overrides teacher.temperature=0.2
    r2v collect --config configs/webarena/noisy.yaml --num-episodes 500 --seeds 1 2 3 --overrides ...

Each command's row (`r2v.pipeline.jobs`) defines its positional arguments. A missing or empty value is the
configuration's; a missing condition is noisy. Everything from the first word with a dash on is passed on unchanged. A
command whose row names a configuration uses it without a benchmark, or one in the folder of that name by its stem:
`10_train_hierarchical.sh gsm8k` uses configs/hierarchical/gsm8k.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from r2v.errors import UsageError, nearest
from r2v.pipeline.jobs import command
from r2v.pipeline.rows import CONDITION
from r2v.slurm.job.command_line import RUN
from r2v.storage.paths import CONFIGS


def expand(words: Sequence[str], root: Path = Path()) -> list[str]:
    """Return the words of a script, its command first, as a command line of `r2v`. Lines without positional arguments
    must name their `--config`, unless the command has one of its own. Raises UsageError."""
    name, *rest = words
    values = list(takewhile(lambda word: not word.startswith("-"), rest))
    options = rest[len(values) :]
    named = any(word.split("=")[0] == "--config" for word in options)
    row = None if name == RUN else command(name)
    if not values and named:
        return list(words)
    if row is not None and row.config is not None and (own := _own_config(row.config, values, root)):
        return [name, "--config", own, *options]
    positionals = (CONDITION,) if row is None else row.positionals
    if not values or len(values) > 1 + len(positionals):
        raise UsageError(
            f"{name} takes BENCHMARK {usage(positionals)} [--overrides KEY=VALUE ...], got "
            f"{' '.join(map(repr, values)) or 'nothing'}; several seeds stand in one pair of quotes"
        )
    meant = dict(zip(positionals, values[1:], strict=False))
    config = _config(values[0], meant.pop(CONDITION, "") or "noisy", root)
    flags = [part for option, value in meant.items() if value for part in (option, *value.split())]
    return [name, "--config", str(config), *flags, *options]


def _own_config(default: str, values: Sequence[str], root: Path) -> str | None:
    """Return the command's own configuration, or the one that its only word names; None if that is a benchmark."""
    if not values:
        return default
    named = Path(default).with_suffix("") / f"{values[0]}.yaml"
    return str(named) if len(values) == 1 and (root / named).is_file() else None


def usage(positionals: Sequence[str]) -> str:
    """Return the positional arguments after BENCHMARK in a usage line: `[NUM_EPISODES] [CONDITION]`."""
    return " ".join(f"[{option.strip('-').upper().replace('-', '_')}]" for option in positionals)


def _config(benchmark: str, condition: str, root: Path) -> Path:
    path = CONFIGS / benchmark / f"{condition}.yaml"
    if not (root / path).is_file():
        folder = root / CONFIGS
        available = (
            {file.parent.name for file in folder.glob("*/*.yaml")}
            if not (folder / benchmark).is_dir()
            else {file.stem for file in (folder / benchmark).glob("*.yaml")}
        )
        wrong = benchmark if not (folder / benchmark).is_dir() else condition
        raise UsageError(f"no configuration {path}; {nearest(wrong, available)}")
    return path
