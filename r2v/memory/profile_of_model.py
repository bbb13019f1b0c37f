"""Profile of a model: default settings for a configuration that names a model but no learning rate.

    config = configured(None, ["policy.model_name=meta-llama/Llama-3.2-1B"])    # no training.lr: profile lora-1b

The defaults are for the bundled student, whose learning rate ruins a real model. So a model that is not bundled gets
the profile for its size, which is logged. If none can be chosen (a model of unknown size, or one that is too large),
commands that train nothing continue, and training is refused with the list of profiles.
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
"""Learning rates whose defaults are independent of training.lr."""


def configured(path: Source = None, overrides: Sequence[str] = ()) -> Config:
    """Return `r2v.config.load` with the profile for the model's size unless profile or training.lr is given. Raise
    UsageError as it does."""
    config = load(path, overrides)
    if config.profile not in (AUTO, PAID_SMALL) or config.policy.is_api or config.policy.model_name in BUNDLED:
        return config
    given = assigned_keys(path, overrides)
    if "training.lr" in given:
        left = [key for key in _PHASES if key not in given]
        if left:
            remedy = "set them, or a profile: training.lr does not change them"
            logger.warning("  learning rates of the bundled student kept: keys=%s remedy=%s", ",".join(left), remedy)
        return config
    try:
        profile, size = _profile_for(config, whole="policy.lora_r" in given and config.policy.lora_r == 0)
    except UsageError:
        return config  # training raises it, by `require_settings`
    name, millions = config.policy.model_name, f"{size / 1e6:,.1f}"
    remedy = "to override, set profile or training.lr"
    logger.info("  profile chosen: profile=%s model=%s parameters=%sM remedy=%s", profile, name, millions, remedy)
    named = profile if config.profile == AUTO else f"{PAID_SMALL}+{profile}"
    return load(path, [*overrides, f"profile={named}"])


def require_settings(config: Config) -> None:
    """Raise UsageError if no profile could be chosen for a model, which would train with the bundled student's learning
    rate."""
    unchosen = config.profile in (AUTO, PAID_SMALL) and config.training.lr == Config().training.lr
    if unchosen and config.policy.model_name not in BUNDLED:
        _profile_for(config, whole=False)
        _profile_for(config, whole=config.policy.lora_r == 0)


def _profile_for(config: Config, *, whole: bool) -> tuple[str, float]:
    """Return (profile, number of parameters). `whole`: all weights are trained. Raise UsageError if no profile fits."""
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
