"""Arms of a full factorial design: all combinations of the levels of its factors, each played by equal agents.

    factors = Factors(models=(luna, opus), temperatures=(0.2, 1.0), personas=(Wording(name="none"), shy))
    [arm.label for arm in arms(factors)]      # 8 arms: "gpt-6-luna, temperature 0.2, persona none", ...

A factor with one level is a setting and not part of the label. `pairs_of` chooses the pairings: all arms with each
other, every arm with itself, or every arm with one fixed opponent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Any

from r2v.errors import UsageError
from r2v.game.play.players import Agent, ModelAgent, current_agent

MAX_ARMS = 1000


@dataclass(frozen=True, kw_only=True)
class Wording:
    """A named text: a persona, or the instructions of a game."""

    name: str
    text: str = ""
    """Empty: no persona, or the game's own instructions."""


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Levels of every factor. Empty: the model's own setting, or none."""

    models: tuple[ModelAgent, ...]
    temperatures: tuple[float, ...] = ()
    max_tokens: tuple[int, ...] = ()
    efforts: tuple[str, ...] = ()
    personas: tuple[Wording, ...] = ()
    system_prompts: tuple[Wording, ...] = ()

    @property
    def varied(self) -> dict[str, int]:
        """Return the number of levels by factor, for factors with several."""
        levels = {
            "model": len({current_agent(model).model for model in self.models}),
            "temperature": len(self.temperatures),
            "max_tokens": len(self.max_tokens),
            "effort": len(self.efforts),
            "persona": len(self.personas),
            "system_prompt": len(self.system_prompts),
        }
        return {factor: count for factor, count in levels.items() if count > 1}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A combination of levels."""

    model: ModelAgent
    persona: str = ""
    system_prompt: str = ""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Factor -> level, for factors with several levels."""

    @property
    def label(self) -> str:
        """Return the model and this arm's levels of the other varied factors."""
        rest = [f"{factor} {level}" for factor, level in self.levels.items() if factor != "model"]
        return ", ".join([current_agent(self.model).model, *rest])


def arms(factors: Factors) -> list[Arm]:
    """Return every combination of the levels, the last factor changing fastest. Raises UsageError for a repeated level
    and for more than `MAX_ARMS`."""
    for name, values in vars(factors).items():
        names = [getattr(value, "name", value) for value in values]
        # Two agent types may have the same successor model, so models may repeat.
        if len(set(names)) < len(names) and name != "models":
            raise UsageError(f"{name.removesuffix('s')}: a level is given twice; name each level once")
    varied = factors.varied
    result = []
    grid = product(
        factors.models,
        factors.temperatures or (None,),
        factors.max_tokens or (None,),
        factors.efforts or (None,),
        factors.personas or (Wording(name="none"),),
        factors.system_prompts or (Wording(name="default"),),
    )
    for model, temperature, max_tokens, effort, persona, prompt in grid:
        settings: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "effort": effort}
        levels = {
            "model": current_agent(model).model,
            **{name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()},
            "persona": persona.name,
            "system_prompt": prompt.name,
        }
        result.append(
            Arm(
                model=replace(model, **{name: value for name, value in settings.items() if value is not None}),
                persona=persona.text,
                system_prompt=prompt.text,
                levels={name: level for name, level in levels.items() if name in varied},
            )
        )
        if len(result) > MAX_ARMS:
            raise UsageError(f"the factors have more than {MAX_ARMS} combinations; take fewer levels")
    return result


def seats_of(arm_list: Sequence[Arm], against: str | ModelAgent, count: int) -> list[Arm | ModelAgent]:
    """Return the seats of a game. Against `all`: `count` seats, the arms in turn; against `self`: two per arm; against
    a model: one per arm, then that model."""
    if isinstance(against, ModelAgent):
        return [*arm_list, against]
    if against == "self":
        return [arm for arm in arm_list for _ in range(2)]
    return [arm_list[number % len(arm_list)] for number in range(count)]


def agents_of(seats: Sequence[Arm | ModelAgent]) -> list[Agent]:
    """Return an agent per seat, with names that do not disclose the arm."""
    agents = []
    for number, seat in enumerate(seats, start=1):
        agent = Agent(
            id=str(number), name=f"Agent{number}", service=seat if isinstance(seat, ModelAgent) else seat.model
        )
        if isinstance(seat, Arm):
            has_arm = any(factor != "model" for factor in seat.levels)
            agent = replace(
                agent,
                persona=seat.persona,
                system_prompt=seat.system_prompt,
                arm=seat.label if has_arm else "",
                levels=dict(seat.levels),
            )
        else:
            agent = replace(agent, arm=f"{current_agent(seat).model} (opponent)")
        agents.append(agent)
    return agents


def pairs_of(num_arms: int, against: str | ModelAgent) -> list[tuple[int, int]] | None:
    """Return the pairs of seats of `seats_of` that meet, counted from 0: the two of each arm for `self`, every arm and
    the last seat for an opponent. None for `all`: a round robin."""
    if against == "all":
        return None
    if against == "self":
        return [(2 * arm, 2 * arm + 1) for arm in range(num_arms)]
    return [(arm, num_arms) for arm in range(num_arms)]


def num_pairs(num_agents: int, pairs: Sequence[tuple[int, int]] | None) -> int:
    """Return the number of pairs of agents that meet in a replicate, each in both orders."""
    return len(list(combinations(range(num_agents), 2))) if pairs is None else len(pairs)


_FIELDS = ("name", "other", "secret", "scoring", "messages", "own_messages", "opener")
_FIELD = re.compile(r"\{(\w*)\}")


def check_system_prompt(wording: Wording) -> None:
    """Raise UsageError for instructions without the field {secret} or with an unknown field."""
    names = _FIELD.findall(wording.text)
    for name in names:
        if name not in _FIELDS:
            raise UsageError(f"--system-prompt {wording.name}: no field {{{name}}}; there are {', '.join(_FIELDS)}")
    if wording.text and "secret" not in names:
        raise UsageError(f"--system-prompt {wording.name}: lacks {{secret}}, so its players would not know theirs")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return the instructions with their fields filled in."""
    return _FIELD.sub(lambda match: values.get(match[1], match[0]), text)
