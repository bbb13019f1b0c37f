"""What stands behind a script's name on an sbatch line, in the words of `r2v`.

    sbatch scripts/slurm/01_collect.sh webarena 500 "1 2 3" --overrides teacher.temperature=0.2
    r2v collect --config configs/webarena/noisy.yaml --num-episodes 500 --seeds 1 2 3 --overrides ...

A value left out, or "", is the configuration's own; a condition left out is noisy. From the first word with a
dash on everything is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from r2v.errors import UsageError, nearest

CONDITION = "CONDITION"

ORDER = {
    "collect": ("--num-episodes", "--seeds", CONDITION),
    "perturb": ("--seeds", CONDITION),
    "train_policy": (CONDITION, "--stage"),
    "train_verifier": (CONDITION,),
    "generate_candidates": ("--K", CONDITION),
    "generate_router_features": (CONDITION,),
    "train_router": (CONDITION,),
    "evaluate": (CONDITION, "--seeds", "--methods"),
    "ablations": ("--seeds", CONDITION),
    "train_hierarchical": (CONDITION,),
}
"""Stage -> what its positional arguments after the benchmark mean."""


def expand(words: Sequence[str], root: Path = Path()) -> list[str]:
    """The words of a script, its stage first, as those of `r2v`. Lines without positional arguments must name
    their `--config`. Raises UsageError."""
    stage, *rest = words
    places = list(takewhile(lambda word: not word.startswith("-"), rest))
    others = rest[len(places) :]
    if stage not in ORDER and stage != "run":
        raise UsageError(f"no stage {stage}; {nearest(stage, ORDER)}")
    if not places and any(word.split("=")[0] == "--config" for word in others):
        return list(words)
    order = ORDER.get(stage, (CONDITION,))
    usage = " ".join(f"[{name.strip('-').upper().replace('-', '_')}]" for name in order)
    if not places or len(places) > 1 + len(order):
        raise UsageError(
            f"{stage} takes BENCHMARK {usage} [--overrides KEY=VALUE ...], got "
            f"{' '.join(map(repr, places)) or 'nothing'}; several seeds stand in one pair of quotes"
        )
    values = dict(zip(order, places[1:], strict=False))
    config = _config(places[0], values.pop(CONDITION, "") or "noisy", root)
    options = [part for name, value in values.items() if value for part in (name, *value.split())]
    return [stage, "--config", str(config), *options, *others]


def _config(benchmark: str, condition: str, root: Path) -> Path:
    path = Path("configs") / benchmark / f"{condition}.yaml"
    if not (root / path).is_file():
        folder = root / "configs"
        known = (
            {one.parent.name for one in folder.glob("*/*.yaml")}
            if not (folder / benchmark).is_dir()
            else {one.stem for one in (folder / benchmark).glob("*.yaml")}
        )
        wrong = benchmark if not (folder / benchmark).is_dir() else condition
        raise UsageError(f"no configuration {path}; {nearest(wrong, known)}")
    return path
