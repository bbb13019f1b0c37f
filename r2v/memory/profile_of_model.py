"""The profile of a model: which settings a configuration begins from that names a model and no learning rate.

    config = configured(None, ["policy.model_name=meta-llama/Llama-3.2-1B"])    # no training.lr: profile lora-1b

The defaults are the bundled student's, and its learning rate ruins a real model. So a model that is not bundled begins
from the profile for its size, which one line says. Where none can be chosen (a model that is yet to be made, one that
is nowhere here, one that is too large), commands that train nothing go on, and training is refused with their names.
"""

from __future__ import annotations

from collections.abc import Sequence

from r2v.config import Config, Source, assigned_keys, load
from r2v.config.profiles import AUTO, PAID_SMALL, PROFILES, TINY
from r2v.errors import InputError, UsageError
from r2v.log import logger
from r2v.memory.models import counted
from r2v.storage.weights import BUNDLED

_PHASES = ("training.preference.lr", "training.verifier.lr")
"""Learning rates whose defaults do not follow training.lr."""


def configured(path: Source = None, overrides: Sequence[str] = ()) -> Config:
    """`r2v.config.load`, with the profile for the model's size where neither profile nor training.lr is given. Raises
    UsageError as it does."""
    config = load(path, overrides)
    if config.profile not in (AUTO, PAID_SMALL) or config.policy.is_api or config.policy.model_name in BUNDLED:
        return config
    given = assigned_keys(path, overrides)
    if "training.lr" in given:
        left = [key for key in _PHASES if key not in given]
        if left:
            logger.warning(
                "  left at the bundled student's, for training.lr does not reach it: %s; set it, or a profile",
                ", ".join(left),
            )
        return config
    try:
        profile, size = _profile_for(config, whole="policy.lora_r" in given and config.policy.lora_r == 0)
    except UsageError:
        return config  # `require_settings` raises it where it matters
    logger.info(
        "  profile=%s, for %s has %s M parameters (another one, or training.lr of your own, chooses otherwise)",
        profile,
        config.policy.model_name,
        f"{size / 1e6:,.1f}",
    )
    named = profile if config.profile == AUTO else f"{PAID_SMALL}+{profile}"
    return load(path, [*overrides, f"profile={named}"])


def require_settings(config: Config) -> None:
    """Raises UsageError where a model would be trained with the bundled student's learning rate because no profile
    could be chosen for it."""
    unchosen = config.profile in (AUTO, PAID_SMALL) and config.training.lr == Config().training.lr
    if unchosen and config.policy.model_name not in BUNDLED:
        _profile_for(config, whole=False)
        _profile_for(config, whole=config.policy.lora_r == 0)


def _profile_for(config: Config, *, whole: bool) -> tuple[str, float]:
    """(profile, parameters of the model); `whole`: all weights are to be trained."""
    name, names = config.policy.model_name, ", ".join(PROFILES)
    try:
        size = counted(name).total
    except (InputError, UsageError) as error:
        raise UsageError(
            f"policy.model_name={name}: its size is not known here, so no settings can be chosen for it; set profile "
            f"to one of {names}, or training.lr ({error})"
        ) from None
    if size <= PROFILES[TINY].largest:
        return TINY, size
    packed = config.policy.load_in_4bit is True
    if whole:
        fitting = ["full-1b"] if size <= PROFILES["lora-1b"].largest else []
    elif packed:
        fitting = ["qlora-8b"] if size <= PROFILES["lora-8b"].largest else []
    else:
        fitting = [profile.name for profile in PROFILES.values() if size <= profile.largest]
    if not fitting:
        raise UsageError(
            f"policy.model_name={name}: no profile is made for {size / 1e9:.1f} B parameters"
            f"{' trained whole' if whole else ''}; set training.lr, and what else r2v config prints, or begin from one "
            f"with profile={'lora-8b' if whole else 'qlora-8b'}; there are {names}"
        )
    return fitting[0], size
