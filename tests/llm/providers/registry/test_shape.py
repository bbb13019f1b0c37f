"""Contents of requests to a model, and settings refused before anything is sent."""

from __future__ import annotations

import pytest

from r2v.errors import UsageError
from r2v.llm.providers.registry.accepts import Accepts, accepts_of
from r2v.llm.providers.registry.shape import THINKING_TOKENS, Asked, RequestShape, shape_of


def shaped(model: str, **asked: object) -> RequestShape:
    provider = "anthropic" if model.startswith("claude") else "openai"
    return shape_of(accepts_of(provider, model), Asked(**asked), model=model)  # type: ignore[arg-type]


def test_each_generation_is_asked_what_it_takes() -> None:
    old, budget, adaptive = shaped("gpt-4o"), shaped("claude-haiku-4-5"), shaped("claude-opus-4-8")
    assert (old.temperature, old.thinking_tokens, old.limit) == (True, 0, "max_completion_tokens")
    assert (budget.temperature, budget.thinking_tokens) == (True, 0), "thinks only if asked"
    assert (adaptive.temperature, adaptive.thinking_tokens) == (False, 0)
    for model in ("gpt-5-mini", "o3", "gpt-6-luna", "gpt-6.1-sol", "claude-opus-5-5", "claude-haiku-5-5"):
        shape = shaped(model)
        assert (shape.temperature, shape.thinking_tokens) == (False, THINKING_TOKENS), model
        assert (shape.effort, shape.thinking, shape.limit_of(300)) == (None, None, 300 + THINKING_TOKENS), model
    assert shaped("gpt-5.2-pro").responses and shaped("gpt-5.2-pro").limit_of(1) >= 16


def test_a_model_that_nobody_has_listed_is_asked_as_the_newest_and_a_servers_own_as_the_oldest() -> None:
    assert accepts_of("openai", "gpt-7-nova") == accepts_of("openai", "gpt-6-luna")
    assert accepts_of("anthropic", "claude-opus-6") == accepts_of("anthropic", "claude-opus-5-5")
    own = accepts_of("openai", "our/model-70b", base_url="http://localhost:8000/v1")
    assert (own.temperature, own.limit, own.tools, own.thinking) == (True, "max_tokens", "none", "never")
    resold = accepts_of("openai", "gpt-6-luna", base_url="https://lab.openai.azure.com/openai/v1")
    assert resold == accepts_of("openai", "gpt-6-luna")
    assert accepts_of("mylab.provider:Gateway", "m").temperature


def test_thinking_is_turned_on_and_off_in_each_models_way() -> None:
    assert shaped("claude-haiku-4-5", thinking="enabled", thinking_tokens=2000).thinking == "budget"
    assert shaped("claude-haiku-4-5", thinking="enabled", thinking_tokens=9).thinking_tokens == 1024, "the least budget"
    assert not shaped("claude-haiku-4-5", thinking="enabled").temperature
    assert shaped("claude-opus-4-7", thinking="enabled").thinking == "adaptive"
    assert shaped("claude-haiku-5-5", thinking="disabled").thinking == "disabled"
    assert shaped("claude-sonnet-5-5", thinking="disabled").thinking == "between_tools"
    quiet = shaped("gpt-6-luna", thinking="disabled")
    assert (quiet.effort, quiet.temperature, quiet.thinking_tokens) == ("none", True, 0)
    assert shaped("gpt-5.2", thinking="enabled").effort == "medium"
    assert shaped("gpt-6-luna", effort="low", thinking_tokens=500).limit_of(64) == 564
    assert shaped("claude-opus-5-5", effort="low").effort == "low"


@pytest.mark.parametrize(
    ("model", "asked", "says"),
    [
        ("claude-opus-5-5", {"temperature": 0.7}, "claude-opus-5-5 takes no temperature; set it to 0"),
        ("gpt-6-luna", {"temperature": 0.7}, "only while it does not think; .* or teacher.thinking=disabled"),
        ("claude-opus-5-5", {"thinking": "disabled"}, "always thinks; the least it takes is teacher.effort=low"),
        ("gpt-6.1-sol", {"effort": "none"}, "effort=none: not for gpt-6.1-sol; it takes low, medium, high, xhigh, max"),
        ("claude-haiku-4-5", {"effort": "low"}, "it takes none; leave it out"),
        ("gpt-4o", {"thinking": "enabled"}, "gpt-4o does not think"),
        ("claude-haiku-5-5", {"thinking": "disabled", "effort": "max"}, "only while it thinks"),
        ("gpt-3.5-turbo", {"actions": "tools"}, "is not known to take tool calls; .* teacher.model.tools=everywhere"),
        ("gpt-3.5-turbo", {"actions": "json"}, "is not known to take a schema"),
    ],
)
def test_what_a_model_does_not_take_is_refused_in_one_line(model: str, asked: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        shaped(model, **asked)
    assert "\n" not in str(raised.value)


def test_actions_take_the_way_that_the_model_has() -> None:
    assert [shaped(model, actions="auto").actions for model in ("gpt-3.5-turbo", "gpt-4o")] == ["text", "tools"]
    assert shape_of(Accepts(json_schema=True), Asked(actions="auto")).actions == "json"
    sol = shaped("gpt-6.1-sol", actions="tools")
    assert sol.responses and sol.min_tokens == 16, "its tools are to be had in the Responses API alone"
    assert not shaped("gpt-6.1-sol").responses and not shaped("claude-sonnet-5-5", actions="tools").forced_tool
