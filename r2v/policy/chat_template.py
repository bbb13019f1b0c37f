"""Chat template: a tokenizer's template, whose behaviour is read off its renderings of marked conversations.

    template = ChatTemplate(tokenizer, tools=benchmark_tools)
    ids = template.render(template.turns(messages), generation=True)

A template may silently drop roles that it does not know (tool results, the system prompt). So it is tried on
conversations of marked texts, and texts of dropped roles are put into user turns from then on. Its clock is stopped: a
prompt must be the same on every day.

Many templates show more before an earlier reply than their generation prompt has: an empty thought, the name of a
channel. Prompts end in this opening, so that a reply is learned, generated and shown later after the same text. A
template that writes calls in a form of its own (`ToolForm`) is given actions in that form.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache, partial
from os.path import commonprefix
from typing import Any

from r2v.data.action import parse_action
from r2v.data.episode import Action
from r2v.errors import UsageError
from r2v.llm.providers.bodies import CALL_FORMAT, REPLY_FORMAT, system_prompt
from r2v.log import logger
from r2v.storage.weights import readable_model
from r2v.wire.actions import read_actions
from r2v.wire.chat import template_message
from r2v.wire.message import Message, Part, TextPart, ToolCall, ToolSpec

TEMPLATE_DATE = datetime(2024, 7, 26)
"""The date of today for every template: the default of Llama's own templates."""

_DIRECTIVES = "aAbBcdHIjmMpSUwWxXyYzZ"
_STEPS = (0, 1, 3)
"""Lengths of the conversations that a template is tried on."""
_TAG = re.compile(r"([<\[])([\w:]+)([>\]])\s*$")
"""A tag at the end of a prompt, which may open a thought."""

Render = Callable[[Sequence[Message]], str | None]
"""The text of a conversation, without a generation prompt; None where the template refuses it."""

_ASKED = Message(role="user", content="go")
_REPLY = "qzreply"
_TRIED: Mapping[str, Any] = {"a": '"quoted"\nline <b> & \\ é', "b": "3", "c": 3, "d": True, "e": ["x", {"f": None}]}
"""Arguments of a trial call; the template's form is used only if they are read back unchanged."""
_TRIED_SCHEMA = {"properties": {"b": {"type": "string"}}}
_REMEMBERED = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Fold:
    """The changes to a conversation for a template that does not render all of it."""

    tool: bool = False
    """Observations become user turns."""
    system: bool = False
    """The system prompt is put before the user's first words."""
    parts: bool = False
    """Contents are lists of parts, as templates for images and text expect."""

    def turns(self, messages: Sequence[Message]) -> list[Message]:
        """Return the conversation in roles that the template renders; adjacent turns of one role are joined."""
        turns: list[Message] = []
        for message in messages:
            folded = (message.role == "tool" and self.tool) or (message.role == "system" and self.system)
            turn = replace(message, role="user") if folded else message
            if (self.tool or self.system) and turns and turns[-1].role == turn.role:
                turns[-1] = replace(turn, content=turns[-1].text + "\n\n" + turn.text)
            else:
                turns.append(turn)
        return turns

    def content(self, text: str) -> Any:
        """Return a turn's text in the form that the template expects."""
        return [{"type": "text", "text": text}] if self.parts else text


class ChatTemplate:
    """A tokenizer's template, tried on probes. `tools` are part of every conversation: rendered by the template where
    it can, else in a system prompt. `enable_thinking` is passed to the template, which may read it.

    Raises UsageError where texts are lost even in user turns, or differ from one rendering to the next, and where
    a prompt opens a thought that nothing closes.
    """

    def __init__(self, tokenizer: Any, tools: Sequence[ToolSpec] = (), *, enable_thinking: bool = False) -> None:
        self.tokenizer, self.tools, self.enable_thinking = tokenizer, tuple(tools), enable_thinking
        self._schemas: list[dict[str, Any]] | None = None
        self.form: ToolForm | None = None
        """The form of actions, where the template writes calls in one of its own."""
        self.fold = self._find_fold()
        if self._renders_tools():
            self._schemas = _schemas(self.tools)
        self._openings = self._find_openings()
        if self.native_tools:
            self.form = ToolForm.of(partial(self.try_text, generation=False), self.tools)

    @property
    def native_tools(self) -> bool:
        """True if the template itself renders the tools."""
        return self._schemas is not None

    @property
    def preamble(self) -> str:
        """The system prompt's part about the tools; empty without tools."""
        if not self.tools:
            return ""
        if not self.native_tools:
            return system_prompt((), self.tools)
        return REPLY_FORMAT if self.form is None else CALL_FORMAT

    def turns(self, messages: Sequence[Message]) -> list[Message]:
        """Return the conversation as the template's input."""
        return self.fold.turns(self.prepared(messages))

    def prepared(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the conversation with its tools in the system prompt, and its actions in the template's form."""
        if not self.preamble:
            return messages
        if self.form is not None:
            messages = [replace(m, content=self.form.text(m.text)) if m.role == "assistant" else m for m in messages]
        opening = [m.text for m in messages if m.role == "system"]
        system = Message(role="system", content="\n\n".join([*opening, self.preamble]))
        return [system, *(m for m in messages if m.role != "system")]

    def render(self, turns: Sequence[Message], *, generation: bool) -> list[int]:
        """Return the token ids of `turns`; with `generation`, up to the start of the next action."""
        encoded = self.tokenizer(self.text(turns, generation=generation), add_special_tokens=False)["input_ids"]
        return [int(token) for token in encoded]

    def text(self, turns: Sequence[Message], *, generation: bool) -> str:
        """Return the text that `render` tokenises."""
        text = self._applied(turns, self.fold, self._schemas, generation=generation)
        return text + self.opening(turns) if generation else text

    def opening(self, turns: Sequence[Message]) -> str:
        """Return the text between the template's own generation prompt and a reply to these turns; empty for most
        templates."""
        return self._openings.get(turns[-1].role, self._openings.get("tool", ""))

    def try_text(self, turns: Sequence[Message], *, generation: bool) -> str | None:
        """Return `text`, or None where the template refuses."""
        return self._tried(turns, self.fold, self._schemas, generation=generation)

    def log_findings(self) -> None:
        """Log, once in a process, the roles put into user turns, the opening of replies and the form of tools."""
        roles = ["tool"] * self.fold.tool + ["system"] * (self.fold.system and bool(self.tools))
        if roles:
            text = f"  chat template lacks roles, put into user turns: model={self._name} roles={','.join(roles)}"
            say_once(logging.INFO, text)
        if any(self._openings.values()):
            opening = next(filter(None, self._openings.values()))
            say_once(logging.INFO, f"  prompts end in the template's opening: model={self._name} opening={opening!r}")
        if self.tools:
            by = "chat_template" if self.native_tools else "system_prompt"
            form = "json" if self.form is None else "chat_template"
            text = f"  tools in prompts: model={self._name} tools={len(self.tools)} rendered_by={by} actions={form}"
            say_once(logging.INFO, text)

    def _applied(
        self,
        turns: Sequence[Message],
        fold: Fold,
        schemas: list[dict[str, Any]] | None,
        *,
        generation: bool = True,
    ) -> str:
        source = self.tokenizer.get_chat_template(None, schemas)
        rendered = self.tokenizer.apply_chat_template(
            [{**turn, "content": fold.content(turn["content"])} for turn in map(template_message, turns)],
            tools=schemas,
            chat_template=with_stopped_clock(source),
            add_generation_prompt=generation,
            tokenize=False,
            enable_thinking=self.enable_thinking,
        )
        return str(rendered)

    def _find_fold(self) -> Fold:
        """Return the mildest fold under which all texts are rendered."""
        for parts in (False, True):
            for tool in (False, True):
                for system in (False, True):
                    fold = Fold(tool=tool, system=system, parts=parts)
                    if all(self._arrives(fold, probe) for probe in probes(system=True)) and all(
                        self._arrives(fold, probe) for probe in probes(system=False)
                    ):
                        return fold
        raise UsageError(
            f"{self._name}: its chat template drops texts of a conversation, even in user turns; "
            "set another chat_template in its tokenizer_config.json"
        )

    def _arrives(self, fold: Fold, messages: Sequence[Message], schemas: list[dict[str, Any]] | None = None) -> bool:
        """True if every text of a conversation of marked texts is rendered, in order."""
        text = self._text(fold, messages, schemas)
        return text is not None and in_order(text, [mark for message in messages for mark in marks(message)])

    def _text(self, fold: Fold, messages: Sequence[Message], schemas: list[dict[str, Any]] | None) -> str | None:
        """Return the rendered text; None where the template refuses."""
        first, again = (self._tried(fold.turns(messages), fold, schemas) for _ in range(2))
        if first != again:
            raise UsageError(f"{self._name}: its chat template draws at random; set another in its tokenizer")
        return first

    def _tried(
        self, turns: Sequence[Message], fold: Fold, schemas: list[dict[str, Any]] | None, *, generation: bool = True
    ) -> str | None:
        try:
            return self._applied(turns, fold, schemas, generation=generation)
        except Exception:  # a template may raise anything
            return None

    def _renders_tools(self) -> bool:
        """True if the template itself renders all of these tools, and still every message."""
        if not self.tools:
            return False
        schemas = _schemas(self.tools)
        words = [word for tool in self.tools for word in (tool.name, tool.description.strip())]
        words += [name for tool in self.tools for name in tool.parameters.get("properties", {})]
        for probe in probes(system=True):
            text = self._text(self.fold, probe, schemas)
            if text is None or not all(_as_json(word) in text or word in text for word in words):
                return False
            if not self._arrives(self.fold, probe, schemas):
                return False
        return True

    def _find_openings(self) -> dict[str, str]:
        """Return role of the newest turn -> opening of a reply to it; empty where it differs with the length of a
        conversation, as in a template that counts turns."""
        openings: dict[str, set[str]] = {}
        longer = list(probes(system=False))
        for messages in (longer[0][:1], *longer):
            opening = self._opening_after(messages)
            if opening is not None:
                openings.setdefault(self.turns(messages)[-1].role, set()).add(opening)
        return {role: texts.pop() if len(texts) == 1 else "" for role, texts in openings.items()}

    def _opening_after(self, messages: Sequence[Message]) -> str | None:
        """Return the opening of a reply to a probe, from the next prompt's text before that reply; None where the
        template refuses one of the two prompts, or renders the reply in another form."""
        reply = Message(role="assistant", content=f'{{"tool":"look","id":"{_mark("r", 0, 0)}"}}')
        later = [*messages, reply, Message(role="tool", content=_marked("n", 0))]
        prompt, next_prompt = (self._tried(self.turns(m), self.fold, self._schemas) for m in (messages, later))
        if prompt is None or next_prompt is None or reply.text not in next_prompt:
            return None
        newest = marks(messages[-1])[-1]
        prompt_end = prompt.rpartition(newest)[2]
        before_reply = next_prompt.partition(reply.text)[0].rpartition(newest)[2]
        common = len(commonprefix((prompt_end, before_reply)))
        opening, source = before_reply[common:], self.tokenizer.get_chat_template(None, self._schemas)
        if prompt_end[common:].strip():
            return self._closing(prompt_end, source)
        if not opening.strip():  # spaces may belong to a reply's first token, as in templates without thoughts
            return opening if "enable_thinking" in source else ""
        asks = prompt != self._tried(self.turns(messages), self.fold, self._schemas, generation=False)
        return opening if asks else ""  # without a generation prompt it is the name of a role

    def _closing(self, prompt_end: str, source: str) -> str:
        """Return the end of a thought that a prompt opens and history drops; "" where the prompt closes it itself."""
        tag = _TAG.search(prompt_end)
        if tag is None:
            return ""
        end = f"{tag[1]}/{tag[2]}{tag[3]}"
        if end not in source:
            raise UsageError(
                f"{self._name}: its chat template opens {tag[0].strip()} before a reply and never closes it; set "
                "policy.enable_thinking=false if it reads that, else another chat_template in its tokenizer_config.json"
            )
        return f"\n{end}\n\n"

    @property
    def _name(self) -> str:
        return str(self.tokenizer.name_or_path or "tokenizer")


@contextmanager
def usable_tokenizer(tokenizer: Any) -> Iterator[None]:
    """Guard the block that tries a tokenizer and its chat template for the first time. Raises UsageError where it has
    no template or no end token, InputError where one of them fails in the block, or does not end."""
    name = tokenizer.name_or_path or "tokenizer"
    if not tokenizer.chat_template or tokenizer.eos_token_id is None:
        raise UsageError(
            f"{name}: has no chat template or no end token; set them in its tokenizer_config.json, or name a model "
            "that was made for conversations"
        )
    with readable_model(f"{name}: cannot use its tokenizer with its chat template", "mend them, or name another model"):
        yield


@lru_cache(maxsize=64)
def with_stopped_clock(template: str) -> str:
    """Return the template with `strftime_now` fixed to `TEMPLATE_DATE`; unchanged where it reads no clock."""
    if "strftime_now" not in template:
        return template
    answer = "format" + "".join(
        f" | replace({json.dumps('%' + sign)}, {json.dumps(TEMPLATE_DATE.strftime('%' + sign))})"
        for sign in _DIRECTIVES
    )
    return f"{{%- macro strftime_now(format) -%}}{{{{ {answer} }}}}{{%- endmacro %}}\n{template}"


def probes(*, system: bool) -> Iterator[list[Message]]:
    """Yield conversations of several lengths, every text marked at its beginning and its end."""
    for steps in _STEPS:
        messages = [Message(role="system", content=_marked("s", 0))] if system else []
        messages.append(Message(role="user", content=_marked("g", 0)))
        for step in range(steps):
            messages.append(Message(role="tool", content=_marked("o", step)))
            messages.append(Message(role="assistant", content=f'{{"tool":"look","id":"{_mark("a", step, 0)}"}}'))
        yield [*messages, Message(role="tool", content=_marked("o", steps))]


def marks(message: Message) -> list[str]:
    """Return the marks in a probe's text, in order."""
    return [word.strip('"{}:').rpartition('"')[2] for word in message.text.split() if "qz" in word]


def in_order(text: str, words: Sequence[str]) -> bool:
    """True if the words occur in the text one after the other."""
    at = 0
    for word in words:
        at = text.find(word, at) + len(word)
        if at < len(word):
            return False
    return True


def _mark(kind: str, number: int, end: int) -> str:
    return f"qz{kind}{number}x{end}"


def _marked(kind: str, number: int) -> str:
    return f'{_mark(kind, number, 0)} opens "page" {number}\n\n- <b> & {_mark(kind, number, 1)}'


def _schemas(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools as templates take them: OpenAI's function schemas."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": {"type": "object", "properties": {}, "required": [], **tool.parameters},
            },
        }
        for tool in tools
    ]


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


@lru_cache(maxsize=256)
def say_once(level: int, line: str) -> None:
    """Log a line once in a process: encoders are made for every fold and phase."""
    logger.log(level, line)


class ToolForm:
    """Conversion of actions to a chat template's own form of calls, and back, for these tools.

        form = ToolForm.of(render, tools)          # None: no form that can be read back
        form.text('{"tool":"get"}')                # '<tool_call>\\n{"name": "get", "arguments": {}}\\n</tool_call>'
        form.actions(text)                         # ('{"tool":"get"}',)

    R2V stores, replays and compares lines of JSON; a model that was trained on its template's calls is prompted,
    trained and read in those. A form is used only where the template puts a call in the place of a plain reply, and the
    call is read back unchanged, digits, quotes and line breaks in its texts included.
    """

    def __init__(self, render: Render, tools: Sequence[ToolSpec], before: str, after: str) -> None:
        self._render, self._before, self._after = render, before, after
        self._tools = {tool.name: tool.parameters.get("properties", {}) for tool in tools}
        self.text = lru_cache(_REMEMBERED)(self._text)

    @classmethod
    def of(cls, render: Render, tools: Sequence[ToolSpec]) -> ToolForm | None:
        """Return the form in which a template writes calls; None where it has none, or loses a part of them."""
        plain = render([_ASKED, Message(role="assistant", content=_REPLY)])
        if plain is None or plain.count(_REPLY) != 1:
            return None
        before, _, after = plain.partition(_REPLY)
        line = json.dumps({"tool": tools[0].name, **_TRIED})
        tried = cls(render, [replace(tools[0], parameters=_TRIED_SCHEMA)], before, after)
        shown = Message(role="assistant", content=tried.text(line))
        called = _turn([parse_action(line)])
        # without blanks: templates trim texts, but not calls
        as_text, as_call = ("".join((render([_ASKED, message, _ASKED]) or "").split()) for message in (shown, called))
        return cls(render, tools, before, after) if shown.text != line and as_text == as_call else None

    def actions(self, text: str) -> tuple[str, ...]:
        """Return the actions in a model's text, a line each; the text itself where it holds none."""
        lines = read_actions(Message(role="assistant", content=text), self._tools).lines
        return tuple(map(self._typed, lines)) or (text,)

    def _typed(self, line: str) -> str:
        """Return the line with string arguments as strings: a form without quotes reads digits as numbers."""
        call = parse_action(line)
        schema = self._tools[call.action_type]
        texts = {
            name: json.dumps(value, ensure_ascii=False)
            for name, value in call.arguments.items()
            if not isinstance(value, str) and schema.get(name, {}).get("type") == "string"
        }
        return ToolCall(name=call.action_type, arguments=json.dumps(call.arguments | texts)).line if texts else line

    def _text(self, action: str) -> str:
        """Return an action in this form; unchanged where it is no call of these tools, or would be read back
        otherwise."""
        lines, calls = action.split("\n"), list[Action]()
        while lines and (call := parse_action(lines[-1])).action_type in self._tools:
            calls.insert(0, call)
            lines.pop()
        rendered = self._render([_ASKED, _turn(calls, "\n".join(lines))]) if calls else None
        if rendered is None or not (rendered.startswith(self._before) and rendered.endswith(self._after)):
            return action
        text = rendered[len(self._before) : len(rendered) - len(self._after)].strip()
        back = [parse_action(line) for line in self.actions(text)]
        same = [(call.action_type, call.arguments) for call in back] == [
            (call.action_type, call.arguments) for call in calls
        ]
        return text if same else action


def _turn(calls: Sequence[Action], words: str = "") -> Message:
    parts: list[Part] = [TextPart(text=words)] if words else []
    for number, call in enumerate(calls):
        arguments = json.dumps(call.arguments, ensure_ascii=False)
        parts.append(ToolCall(name=call.action_type, arguments=arguments, id=f"call{number:05d}"))
    return Message(role="assistant", content=tuple(parts))
