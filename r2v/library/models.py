"""Policy and Verifier: the trained small models, applied to a conversation.

    policy = Policy.load("outputs/mrp/policy/preference")     # or a bundle's folder
    turn = await policy.act(messages, tools)                  # a Message of the assistant
    verifier = Verifier.load("outputs/bundles/desk")
    await verifier.score(messages, turn, tools)               # in [0, 1]

The settings of the training are read from the bundle or from the pipeline's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from r2v.config import Config, RolloutConfig
from r2v.errors import InputError, UsageError
from r2v.library.conversation import KEY_NAME, chat_request
from r2v.llm.types import ScoreRequest
from r2v.llm.waves import Waves
from r2v.serve.bundle.domain import domain_of
from r2v.serve.bundle.manifest import BUNDLE_MANIFEST, read_bundle
from r2v.serve.bundle.play_bundle import BundleSettings, bundle_settings
from r2v.serve.pair.small import LocalSmall
from r2v.serve.pair.state import NotReadable, served_view
from r2v.serve.request import ClientRequest
from r2v.serve.sessions import AgentSession
from r2v.wire.message import Message, ToolSpec

if TYPE_CHECKING:
    from r2v.rollout.actors import PricedModel, Scorer, StepView

_FINAL = "final"
_STAGES = {"policy": "r2v.stages.train_policy:", "verifier": "r2v.stages.train_verifier:"}
"""Folder in a bundle -> prefix of the stage that makes it."""


@dataclass(frozen=True, kw_only=True)
class _Weights:
    """Weights in a folder, and the settings of their training."""

    folder: Path
    settings: BundleSettings | Config

    @classmethod
    def of(cls, folder: Path, part: str) -> Self:
        """Find the weights of a bundle or a stage. part: the folder's name in a bundle. Raises InputError for any other
        folder, UsageError for a small model behind an API."""
        settings: BundleSettings | Config
        if (folder / BUNDLE_MANIFEST).exists():
            weights, settings = folder / part, bundle_settings(read_bundle(folder))
        else:
            from r2v.config.loading import load_recorded
            from r2v.storage.artifact import read
            from r2v.storage.integrity import CONFIGURATION, verify

            artifact = read(folder.resolve())
            if not artifact.stage.startswith(_STAGES[part]):
                raise InputError(f"{folder}: holds no {part}, it was made by {artifact.stage}")
            verify(artifact)
            weights, settings = artifact.file(_FINAL), load_recorded(artifact.folder / CONFIGURATION)
        if settings.policy.is_api:
            raise UsageError(f"{folder}: its small model is behind an API; ask it there")
        if not weights.is_dir():
            raise InputError(f"{folder}: its pair was trained without a {part}")
        return cls(folder=weights, settings=settings)

    def prompt_tools(self, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
        """Return the tools for the model's prompt; none if it was trained without."""
        return tuple(tools) if self.settings.policy.tools == "auto" else ()

    def view(self, request: ClientRequest) -> StepView:
        """Return the next step of a request's conversation. Raises UsageError."""
        session = AgentSession(name=KEY_NAME, source=KEY_NAME)
        try:
            return served_view(request.body.values, session, domain_of([request.parsed]), self.settings.inference)
        except NotReadable as error:
            raise UsageError(f"messages: {error}") from None


class Policy:
    """A trained small policy, in this process."""

    def __init__(self, weights: _Weights) -> None:
        self._weights, self._waves = weights, Waves(workers=1)
        self._models: dict[str, PricedModel] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Policy:
        """Load the policy of a bundle, or of the stage `bc` or `preference`. Its weights are read on first use. Raises
        InputError if it is missing or damaged, UsageError for a small model behind an API."""
        return cls(_Weights.of(Path(folder), "policy"))

    async def act(
        self, messages: Sequence[Message | Mapping[str, Any]], tools: Sequence[ToolSpec | Mapping[str, Any]] = ()
    ) -> Message:
        """Return the policy's next turn, decoded greedily: a tool call, or text without tools.

        messages, tools: objects, or dictionaries of Chat Completions. Raises UsageError for other values.
        """
        request = chat_request(messages, tools)
        proposal = await LocalSmall(self._model(request.parsed.functions)).propose(request, self._weights.view(request))
        return proposal.wire_reply.message

    def _model(self, tools: Sequence[ToolSpec]) -> PricedModel:
        from r2v.rollout.model_factory import priced_policy

        own, settings = self._weights, self._weights.settings
        offered = own.prompt_tools(tools)
        if repr(offered) not in self._models:
            self._models[repr(offered)] = priced_policy(
                settings.policy, own.folder, settings.cost, settings.inference, RolloutConfig(), self._waves, offered
            )
        return self._models[repr(offered)]


class Verifier:
    """A trained verifier, in this process."""

    def __init__(self, weights: _Weights) -> None:
        self._weights, self._waves = weights, Waves(workers=1)
        self._scorers: dict[str, Scorer] = {}

    @classmethod
    def load(cls, folder: str | Path) -> Verifier:
        """Load the verifier of a bundle, or of the stage `verifier`. Raises as `Policy.load` does."""
        return cls(_Weights.of(Path(folder), "verifier"))

    async def score(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        action: Message | str,
        tools: Sequence[ToolSpec | Mapping[str, Any]] = (),
    ) -> float:
        """Return the calibrated score of an action in this conversation, in [0, 1].

        action: a turn of the assistant, or its text in the policy's form. Raises UsageError as `Policy.act` does.
        """
        request = chat_request(messages, tools)
        view = self._weights.view(request)
        text = action if isinstance(action, str) else action.text
        reply = await self._scorer(request.parsed.functions)(ScoreRequest(messages=view.messages, action=text))
        return reply.score

    def _scorer(self, tools: Sequence[ToolSpec]) -> Scorer:
        from r2v.rollout.model_factory import verifier_scorer

        own, settings = self._weights, self._weights.settings
        offered = own.prompt_tools(tools)
        if repr(offered) not in self._scorers:
            self._scorers[repr(offered)] = verifier_scorer(
                settings.policy, own.folder, settings.inference, RolloutConfig(), self._waves, offered
            )
        return self._scorers[repr(offered)]
