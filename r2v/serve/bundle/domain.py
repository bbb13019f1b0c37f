"""Domain of a bundle: the tools and prompts on which its small model and its router were fitted.

Outside it the small model never answers, because it was never evaluated on another agent's tools.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r2v.data.episode import to_dict
from r2v.data.schema import from_dict
from r2v.data.tools import RecordedTool
from r2v.envs.base import Benchmark, tools_of
from r2v.errors import InputError
from r2v.llm.providers.bodies import CALL_FORMAT, system_prompt
from r2v.policy.training_tools import recorded, tool_specs
from r2v.storage.files import write_json
from r2v.wire.exchange import WireRequest, first_number
from r2v.wire.message import Message, ToolResult, ToolSpec, UnknownPart, mapping

DOMAIN = "domain.json"
_FAMILY = 1000
"""Leading characters of a system prompt that define its family; agents append files, dates and rules, which vary."""
_FORMS = ("text", "json", "tools")
_VARYING = re.compile(r"\d+|(?:/[\w.-]+)+")
_STORED = ("previous_response_id", "conversation", "prompt", "container", "mcp_servers", "web_search_options")
"""Options that refer to state or tools of the provider, which R2V cannot read."""
_STRUCTURED = ("json_schema", "json_object")


@dataclass(frozen=True, kw_only=True)
class Domain:
    """Tools and prompts of a bundle."""

    tools: tuple[RecordedTool, ...]
    untrusted: str = ""
    """The benchmark's mark of untrusted lines."""
    prompts: tuple[str, ...] = ()
    """Families of system prompts; R2V's own prompts for these tools are always included."""
    kinds: tuple[str, ...] = ()
    """Types of the agent's tools that are no functions; the small model never calls them."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as specifications."""
        return tool_specs(self.tools)

    def problem(self, request: WireRequest) -> str | None:
        """Return the reason that the small model may not answer a request; None if it may."""
        options = request.options
        if (first_number(options, "n") or 1) > 1:
            return "several samples are asked for"
        if stored := next((name for name in _STORED if options.get(name)), None):
            return f"{stored}: the provider holds a part of it"
        if _is_structured(options):
            return "a structured reply is asked for"
        offered = (str(tool.value.get("type")) for tool in request.tools if isinstance(tool, UnknownPart))
        if (other := next((kind for kind in offered if kind not in self.kinds), None)) is not None:
            return f"unknown kind of tool {other:.40}"
        shapes = {tool.name: _shape(tool.parameters) for tool in self.tools}
        for tool in request.functions:
            if tool.name not in shapes:
                return f"unknown tool {tool.name:.60}"
            if _shape(tool.parameters) != shapes[tool.name]:
                return f"tool {tool.name:.60} has other parameters"
        if kind := next(_unread(request.conversation), None):
            return f"unreadable part {kind:.40}"
        return self._prompt_problem(request)

    def is_native(self, conversation: Iterable[Message]) -> bool:
        """True for a conversation of R2V's own agent in a benchmark, which calls tools natively."""
        return system_text(conversation).endswith(self._form("tools"))

    def _prompt_problem(self, request: WireRequest) -> str | None:
        text = system_text(request.conversation)
        if not request.functions and self.tools and not any(text.endswith(self._form(form)) for form in _FORMS[:2]):
            return "no tools"
        if any(text.endswith(self._form(form)) for form in _FORMS) or family(text) in self.prompts:
            return None
        own = "" if self.prompts else f"; expected is one that ends in: {CALL_FORMAT}"
        return f"another system prompt{own}"

    def _form(self, form: Any) -> str:
        return system_prompt((), self.specs, form)


def domain_of(requests: Iterable[WireRequest]) -> Domain:
    """Return the domain of recorded requests: the tools that the agent offered, and its prompts."""
    tools: dict[str, RecordedTool] = {}
    prompts, kinds = dict[str, None](), dict[str, None]()
    for request in requests:
        if not request.functions:
            continue  # an agent's requests for titles and summaries, which are no steps
        for tool in recorded(request.functions):
            tools.setdefault(tool.name, tool)
        kinds |= {str(tool.value.get("type")): None for tool in request.tools if isinstance(tool, UnknownPart)}
        prompts[family(system_text(request.conversation))] = None
    return Domain(tools=tuple(tools.values()), prompts=tuple(prompts), kinds=tuple(kinds))


def benchmark_domain(benchmark: Benchmark) -> Domain:
    """Return the domain of a benchmark's worlds."""
    return Domain(tools=recorded(tools_of(benchmark)), untrusted=benchmark.capabilities.untrusted)


def _is_structured(options: Mapping[str, Any]) -> bool:
    formats = (
        options.get("response_format"),
        mapping(options.get("text")).get("format"),
        mapping(options.get("output_config")).get("format"),
    )
    return any(mapping(spec).get("type") in _STRUCTURED for spec in formats)


def _shape(parameters: Mapping[str, Any]) -> str:
    """Return the part of a schema that a call has to match: names and types of the arguments."""
    properties = mapping(parameters.get("properties"))
    return json.dumps(sorted((name, str(mapping(schema).get("type"))) for name, schema in properties.items()))


def _unread(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the kinds of parts that R2V cannot read, such as images."""
    for message in messages:
        for part in message.parts:
            inner = part.content if isinstance(part, ToolResult) and not isinstance(part.content, str) else (part,)
            for item in inner:
                if isinstance(item, UnknownPart):
                    kind = str(item.value.get("type"))
                    if kind != "additional_tools":
                        yield kind


def system_text(messages: Iterable[Message]) -> str:
    """Return all system and developer text of a conversation."""
    return "\n\n".join(message.text for message in messages if message.role in ("system", "developer"))


def family(prompt: str) -> str:
    """Return the digest of a system prompt without numbers, paths and spacing."""
    plain = " ".join(_VARYING.sub("#", prompt.lower()).split())[:_FAMILY]
    return hashlib.blake2b(plain.encode(errors="replace"), digest_size=12).hexdigest()


def write_domain(folder: Path, domain: Domain) -> None:
    """Write the domain into a bundle."""
    write_json(folder / DOMAIN, to_dict(domain))


def read_domain(folder: Path) -> Domain:
    """Read the domain of a bundle. Raises InputError if it is missing or unreadable."""
    path = folder / DOMAIN
    try:
        return from_dict(Domain, json.loads(path.read_text()))
    except FileNotFoundError:
        raise InputError(f"{path}: is missing; an earlier R2V wrote this bundle: export it again to serve it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a bundle's domain ({error})") from None
