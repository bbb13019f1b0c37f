"""Configuration of the teacher and the small policy."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from r2v.config.engines import ENGINE_KEY_ENV, JOB, LOCAL, VLLM, require_url, server_root
from r2v.config.model_facts import Effort, ModelFacts, given_facts
from r2v.constraints import (
    EVERYDAY_KEY,
    IF_GIVEN,
    RUNTIME,
    VARIABLE_NAME,
    Count,
    Keywords,
    Line,
    NotNegative,
    OneOf,
    PathText,
    Positive,
    Range,
    Share,
    Spec,
    Temperature,
    Text,
    check,
    check_fields,
)
from r2v.errors import UsageError
from r2v.extensions import require_name

PROVIDER_NAMES = ("scripted", "openai", "anthropic")
"""Named values of `teacher.provider`; any other is a dotted path `package.module:Class`."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Host names of this machine."""
SELF_HOSTED = "http://localhost"
"""Identity of every self-hosted endpoint, since the machine must not enter fingerprints."""

API_PROVIDERS = PROVIDER_NAMES[1:]
"""Named values of `policy.provider` other than local."""

BUNDLED_NAMES = ("tiny", "toy")
"""Bundled models, by their names in `policy.model_name`."""

_Variable = Text(
    longest=100,
    pattern=VARIABLE_NAME,
    meaning="the name of an environment variable, never the key itself",
    secret=True,
)
_BOTH_SERVERS = 0.475
"""Maximum share of a GPU's memory for each of two servers."""
_Device = Text(pattern=r"auto|cpu|mps|(cuda|xpu|hpu|npu)(:\d{1,3})?", meaning="auto, cpu, cuda, cuda:N, mps or xpu")


Asked = TypeVar("Asked", "TeacherConfig", "APIConfig")


def _with_native_tools(endpoint: Asked) -> Asked:
    """Return an endpoint with native tool calls; a self-hosted model, not in the registry, is taken to have them."""
    model = endpoint.model if endpoint.base_url is None else {"tools": "everywhere", **endpoint.model}
    return replace(endpoint, actions="tools", model=model)


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """The teacher: the LLM that demonstrates tasks and that the router may call."""

    provider: Spec = field(default="scripted", metadata=EVERYDAY_KEY)
    """Provider of the teacher: scripted, the benchmark's own expert; openai; anthropic; or a custom one by its dotted
    path package.module:Class."""
    base_url: Line | None = field(default=None, metadata=EVERYDAY_KEY)
    """Root of another endpoint with the provider's API, e.g. http://localhost:8000/v1; None: the provider's."""
    api_key_env: Annotated[str, _Variable] | None = field(default=None, metadata=RUNTIME | EVERYDAY_KEY)
    """Environment variable that holds the key; None: OPENAI_API_KEY or ANTHROPIC_API_KEY. A name that does not end in
    _API_KEY needs --allow-env on the command line."""
    model_name: Line = field(default="expert", metadata=EVERYDAY_KEY)
    """Model name of the provider."""
    temperature: Temperature = 0.0
    """Sampling temperature; 0: greedy."""
    max_tokens: Annotated[int, Range(at_least=1, at_most=10_000_000)] = field(default=4096, metadata=EVERYDAY_KEY)
    """Longest reply, in tokens."""
    context: Annotated[int, Range(at_least=1024, at_most=100_000_000)] | None = field(default=None, metadata=IF_GIVEN)
    """Longest prompt with its reply, in tokens of about three bytes; longer conversations lose old observations. None:
    from the model registry; without limit for an unknown model."""
    usd_in: NotNegative | None = field(default=None, metadata=EVERYDAY_KEY)
    """USD per million prompt tokens; None: from the model registry."""
    usd_out: NotNegative | None = field(default=None, metadata=EVERYDAY_KEY)
    """USD per million reply tokens; None: from the model registry."""
    effort: Effort | None = field(default=None, metadata=IF_GIVEN)
    """Reasoning effort, in the provider's terms; None: the model's default, and not sent."""
    thinking: Literal["enabled", "disabled"] | None = field(default=None, metadata=IF_GIVEN)
    """Thinking before the answer; None: the model's default."""
    thinking_tokens: Annotated[int, Range(at_least=1, at_most=1_000_000)] | None = field(
        default=None, metadata=IF_GIVEN
    )
    """Tokens for thoughts, in addition to `max_tokens`, and the budget of models that take one; None: 4096."""
    actions: Literal["text", "json", "tools", "auto"] | None = field(default=None, metadata=IF_GIVEN)
    """Form of actions in replies. text: JSON requested in the prompt; json: JSON constrained by a schema; tools: native
    tool calls; auto: tools, json or text, the first that the model is known to support. None: text."""
    model: Annotated[dict[str, Any], Keywords()] = field(default_factory=dict, metadata=IF_GIVEN, hash=False)
    """Facts of a model that override the registry's: the fields of `r2v.config.model_facts.ModelFacts`, e.g.
    {tools: everywhere, batch_price: 0.5}."""
    mode: Literal["batch", "concurrent", "auto"] = field(default="auto", metadata=RUNTIME | EVERYDAY_KEY)
    """Transport of requests to a provider: batch (batch API, half the price), concurrent (direct calls), or auto."""
    engine: Annotated[str, Text(longest=500)] | None = field(default=None, metadata=RUNTIME)
    """Server of a teacher with open weights, a folder or hub model in `model_name`. vllm: a server in each stage's job,
    on its GPUs (`r2v engine install` first); job: a Slurm job of its own, which starts when a stage needs it and ends
    when none does (scripts/slurm/teacher.sh); or the URL of a server, whose key is read from R2V_ENGINE_KEY. None: the
    provider."""
    engine_venv: PathText | None = field(default=None, metadata=RUNTIME)
    """Virtual environment of that engine; None: the one of `r2v engine install`."""
    max_usd: Positive | None = field(default=None, metadata=RUNTIME | EVERYDAY_KEY)
    """Hard cap in USD on a pipeline's bill, all its stages, runs and helpers together; None: none."""
    project_max_usd: Positive | None = field(default=None, metadata=RUNTIME)
    """Hard cap in USD on the bill of all runs, stages and games of the checkout, ever. The first that names one sets it
    for all, others must name the same or none; None: the cap already set (`r2v providers ledger`)."""
    batch_size: Count | None = field(default=None, metadata=RUNTIME)
    """Maximum number of requests in one provider batch; None: the provider's limit."""
    max_concurrent: Annotated[int, Range(at_least=1, at_most=100_000)] = field(default=32, metadata=RUNTIME)
    """Maximum number of direct calls in flight."""
    max_conversations: Annotated[int, Range(at_least=1, at_most=1_000_000)] | None = field(
        default=None, metadata=RUNTIME
    )
    """Maximum number of concurrent conversations with a provider. None: 5000, or twice max_concurrent if all calls are
    direct; rollout.max_conversations for worlds of a browser, a container or a site."""
    flush_seconds: Positive = field(default=30.0, metadata=RUNTIME)
    """Seconds that a request waits for others to share its provider batch."""
    poll_seconds: Positive = field(default=10.0, metadata=RUNTIME)
    """Seconds between two polls of a provider batch, at least; longer where more than five are in flight, or one has
    taken more than half an hour."""
    reconcile_after: Positive = field(default=600.0, metadata=RUNTIME)
    """Seconds within which a created batch appears in the provider's list: an unconfirmed one is searched for so long
    before it is sent again."""
    preflight: bool = field(default=True, metadata=RUNTIME)
    """Send one cheap call before the first request of a run, to learn of a refusal that would hit all requests."""
    attempts: Count = field(default=4, metadata=RUNTIME)
    """Attempts of a request that fails for a passing reason, within one process."""
    outage_seconds: Positive = field(default=14_400.0, metadata=RUNTIME)
    """Seconds to wait for an unreachable provider before the run ends with everything kept; at most half a minute if it
    never answered."""
    tail: Share = field(default=0.05, metadata=RUNTIME)
    """mode=auto: share of the conversations below which the remaining requests are called directly."""
    waiting_usd_per_hour: NotNegative = field(default=1.0, metadata=RUNTIME)
    """mode=auto: cost of an hour of waiting, in USD; a batch that saves less than its wait costs is called directly."""

    def __post_init__(self) -> None:
        if self.engine is not None:
            self._serve()
        require_name("teacher.provider", self.provider, PROVIDER_NAMES)
        check_fields("teacher", self)
        object.__setattr__(self, "model", given_facts("teacher.model", self.model))
        for name in ("base_url", "api_key_env"):
            given = getattr(self, name) is not None
            check(not given or self.provider != "scripted", f"teacher.{name}", "needs a provider", "scripted")
        if self.base_url is not None:
            require_url("teacher.base_url", self.base_url, key_variable="teacher.api_key_env")

    def _serve(self) -> None:
        """Set provider, endpoint and prices of a served teacher: a self-hosted model without a bill."""
        fits = self.provider in ("scripted", "openai")
        check(fits, "teacher.provider", "is openai where teacher.engine serves", self.provider)
        url = f"{SELF_HOSTED}/v1"
        if self.engine not in (VLLM, JOB):
            require_url("teacher.engine", str(self.engine), key_variable=ENGINE_KEY_ENV, others="vllm, job or ")
            url = f"{server_root(str(self.engine))}/v1"
            object.__setattr__(self, "api_key_env", self.api_key_env or ENGINE_KEY_ENV)
        check(self.base_url in (None, url), "teacher.base_url", "is set by teacher.engine", "another")
        object.__setattr__(self, "provider", "openai")
        object.__setattr__(self, "base_url", url)
        for name in ("usd_in", "usd_out"):
            object.__setattr__(self, name, getattr(self, name) or 0.0)

    @property
    def facts(self) -> ModelFacts:
        """The facts in `model`."""
        return ModelFacts(**self.model)

    def with_native_tools(self) -> TeacherConfig:
        """Return the teacher with native tool calls, the form of other agents' conversations."""
        return _with_native_tools(self)

    def require_judge(self) -> None:
        """Raise UsageError for a teacher that cannot judge: a scripted expert is no LLM."""
        if self.provider == "scripted":
            raise UsageError(
                "verifier.mode=llm_judge: a judge needs an LLM; set teacher.provider to openai, anthropic or a "
                "provider of your own"
            )


@dataclass(frozen=True, kw_only=True)
class APIConfig:
    """A small model behind an API, which R2V does not train; keys as in `teacher`. Transport and spending caps are
    `teacher`'s for both models."""

    base_url: Line | None = None
    """Root of another endpoint or a self-hosted server; None: the provider's."""
    api_key_env: Annotated[str, _Variable] | None = field(default=None, metadata=RUNTIME)
    """Environment variable that holds the key; None: OPENAI_API_KEY or ANTHROPIC_API_KEY."""
    temperature: Temperature = 0.0
    """Sampling temperature; 0: greedy."""
    max_tokens: Annotated[int, Range(at_least=1, at_most=10_000_000)] = 4096
    """Longest reply, in tokens."""
    context: Annotated[int, Range(at_least=1024, at_most=100_000_000)] | None = None
    """Longest prompt with its reply, in tokens; None: from the model registry."""
    usd_in: NotNegative | None = None
    """USD per million prompt tokens; None: from the model registry."""
    usd_out: NotNegative | None = None
    """USD per million reply tokens; None: from the model registry."""
    effort: Effort | None = None
    """Reasoning effort; None: the model's default."""
    thinking: Literal["enabled", "disabled"] | None = None
    """Thinking before the answer; None: the model's default."""
    thinking_tokens: Annotated[int, Range(at_least=1, at_most=1_000_000)] | None = None
    """Tokens for thoughts; None: 4096."""
    actions: Literal["text", "json", "tools", "auto"] | None = None
    """Form of actions in replies; None: text."""
    model: Annotated[dict[str, Any], Keywords()] = field(default_factory=dict, metadata=IF_GIVEN, hash=False)
    """Facts of the model, as teacher.model."""

    def __post_init__(self) -> None:
        check_fields("policy.api", self)
        object.__setattr__(self, "model", given_facts("policy.api.model", self.model))
        if self.base_url is not None:
            require_url("policy.api.base_url", self.base_url, key_variable="policy.api.api_key_env")


def endpoint_identity(base_url: str) -> str:
    """Return the part of an endpoint that decides results: a vendor's URL, but SELF_HOSTED for a self-hosted server
    (localhost, a bare host name, a private address), which moves from job to job while `model_name` stays."""
    host = urlsplit(base_url).hostname or ""
    try:
        is_own = ip_address(host).is_private
    except ValueError:  # a host name
        is_own = "." not in host or host.endswith((".local", ".internal", ".localdomain"))
    return SELF_HOSTED if is_own else base_url.rstrip("/")


PROMPT_VERSION = 2
"""2: actions are calls in the chat template's own form, if it has one. A new version changes fingerprints."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The policy: the small model, distilled by R2V or called through an API."""

    provider: Spec | None = field(default=None, metadata=IF_GIVEN | EVERYDAY_KEY)
    """Provider of the small model: local or None, weights that R2V trains; openai, anthropic or a custom one by its
    dotted path, a model of an API or server, which is not trained."""
    api: APIConfig = field(default_factory=APIConfig, metadata=IF_GIVEN)
    """Endpoint and sampling of a provider's model."""
    model_name: PathText = field(default="tiny", metadata=EVERYDAY_KEY)
    """tiny (the bundled student), toy (the bundled model for hierarchical training's word problems), a local directory,
    or a hub name; with a provider, its name of the model."""
    revision: Line | None = field(default=None, metadata=RUNTIME)
    """Commit, branch or tag of a hub model; None: the commit of its main branch in the hub's cache, else the newest.
    `run_all` pins the commit in the chain. Fingerprints hold the model's files, not its name."""
    lora_r: Annotated[int, Range(at_least=0, at_most=65_536)] = field(default=0, metadata=EVERYDAY_KEY)
    """LoRA rank; 0: all weights are trained."""
    lora_alpha: Count | None = None
    """LoRA scaling alpha; None: twice the rank."""
    lora_dropout: Annotated[float, Range(at_least=0, below=1)] = 0.0
    """Dropout probability on the adapters' input."""
    load_in_4bit: Annotated[bool | str, OneOf(values=(True, False, "auto"))] = field(
        default=False, metadata=EVERYDAY_KEY
    )
    """Load the frozen base in 4 bits (nf4): true, false, or auto: with adapters, if bitsandbytes is installed."""
    max_seq_len: Annotated[int, Range(at_least=32, at_most=10_000_000)] = field(default=640, metadata=EVERYDAY_KEY)
    """Longest context with its action, in tokens; older observations are elided first."""
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """Type of the weights at inference; auto: float64 for the bundled student on a CPU, else the saved type. In
    hierarchical training, auto is bfloat16 on a GPU, except for the smallest models; trained weights stay float32."""
    tools: Literal["auto", "none"] | None = field(default=None, metadata=IF_GIVEN)
    """Tools in every prompt: auto, the benchmark's, by the chat template or in a system prompt; or none. None: auto;
    none for a bundled model, which was trained without."""
    enable_thinking: bool | None = field(default=None, metadata=IF_GIVEN)
    """Value of `enable_thinking` for chat templates that read it (Qwen 3.x, GLM, Nemotron), in training and acting. R2V
    teaches actions without thoughts, so a thought that the template opens is closed empty under either value. None:
    false; a bundled model's template reads none."""
    device: Annotated[str, _Device] = field(default="auto", metadata=RUNTIME | EVERYDAY_KEY)
    """Torch device, such as cpu or cuda:1; auto: a GPU if there is one."""
    engine: Annotated[str, Text(longest=500)] = LOCAL
    """Inference engine of the policy in rollouts, and for samples in hierarchical training. local: this process; vllm:
    servers that the stage starts, one on each GPU (`r2v engine install` first); or the URL of such a server, whose key
    is read from R2V_ENGINE_KEY. Runs are byte-identical for the bundled student with local; otherwise sampling is keyed
    and can be replayed."""
    engine_venv: PathText | None = field(default=None, metadata=RUNTIME)
    """Virtual environment of the engine; None: the one of `r2v engine install`."""
    engine_memory: Annotated[float, Range(above=0, at_most=0.95)] = field(default=0.5, metadata=RUNTIME)
    """engine=vllm: share of each GPU's memory for a server. The verifier stays in the stage's process and has to fit
    into the rest, or is served too and needs the same share again (engine_verifier)."""
    engine_verifier: bool = False
    """engine=vllm: serve the verifier and its folds too, as adapters of a second server on each GPU."""

    def __post_init__(self) -> None:
        if self.provider is not None:
            require_name("policy.provider", self.provider, (LOCAL, *API_PROVIDERS))
        object.__setattr__(self, "provider", None if self.provider == LOCAL else self.provider)
        # One form in every fingerprint, and none for bundled models, whose artifacts precede these keys.
        is_bundled = self.model_name in BUNDLED_NAMES or self.is_api
        object.__setattr__(self, "tools", None if is_bundled else self.tools or "auto")
        object.__setattr__(self, "enable_thinking", None if is_bundled else self.enable_thinking or False)
        check_fields("policy", self)
        self._check_api()
        hub = self.revision is None or self.model_name not in BUNDLED_NAMES
        rule = f"belongs to a hub model, and policy.model_name={self.model_name} is bundled"
        check(hub, "policy.revision", rule, self.revision)
        if self.engine_verifier:
            check(self.engine == VLLM, "policy.engine_verifier", "needs policy.engine=vllm", self.engine_verifier)
            fits = self.engine_memory <= _BOTH_SERVERS
            problem = f"must be at most {_BOTH_SERVERS} with policy.engine_verifier=true: two servers share each GPU"
            check(fits, "policy.engine_memory", problem, self.engine_memory)
        if self.engine not in (LOCAL, VLLM):
            require_url("policy.engine", self.engine, key_variable=ENGINE_KEY_ENV, others="local, vllm or ")

    def _check_api(self) -> None:
        if not self.is_api:
            check(self.api == APIConfig(), "policy.api", "needs a provider (policy.provider=openai)", "no provider")
            return
        is_named = self.model_name not in BUNDLED_NAMES
        check(is_named, "policy.model_name", f"names a model of policy.provider={self.provider}", self.model_name)
        check(self.engine == LOCAL, "policy.engine", "belongs to a policy that R2V trains", self.engine)

    @property
    def is_api(self) -> bool:
        """True for a model behind an API, which is not trained."""
        return self.provider is not None

    def as_endpoint(self, teacher: TeacherConfig) -> TeacherConfig:
        """Return an API model as an endpoint, with the transport of this teacher's requests."""
        own = {item.name: getattr(self.api, item.name) for item in fields(self.api)}
        return replace(teacher, provider=str(self.provider), model_name=self.model_name, engine=None, **own)

    def with_native_tools(self) -> PolicyConfig:
        """Return the policy with native tool calls of its API model, the form of other agents' conversations."""
        return replace(self, api=_with_native_tools(self.api))

    def require_servable(self) -> None:
        """Raise UsageError if `engine` is not local and cannot serve this policy."""
        if self.engine == LOCAL:
            return
        problem = (
            "the bundled models are played in this process (policy.engine=local)"
            if self.model_name in BUNDLED_NAMES
            else "whole weights would be a server for each policy; set policy.lora_r (16 is a start), or engine=local"
            if self.lora_r == 0
            else "4-bit weights are not served; set policy.load_in_4bit=false, or engine=local"
            if self.in_4bit
            else "no engine computes in float64; set policy.dtype, or engine=local"
            if self.dtype == "float64"
            else None
        )
        check(problem is None, "policy.engine", f"cannot serve this policy: {problem}", self.engine)

    def trained(self) -> PolicyConfig:
        """Return the fields that training depends on, without the engine."""
        return replace(self, engine=LOCAL, engine_verifier=False)

    def require_trainable(self) -> None:
        """Raise UsageError if the weights cannot be trained."""
        if self.is_api:
            raise UsageError(
                f"policy.provider={self.provider}: {self.model_name} is asked as it is, and this stage trains or "
                "samples weights; leave the stage out, or set policy.provider=local"
            )
        if self.load_in_4bit is True and self.model_name in BUNDLED_NAMES:
            raise UsageError("policy.load_in_4bit=true: a bundled model is not quantised; set it to false or auto")
        if self.load_in_4bit is True and self.lora_r == 0:
            raise UsageError(
                "policy.load_in_4bit=true: 4-bit weights cannot be trained themselves, policy.lora_r is 0; set "
                "policy.lora_r (16 is a start), or policy.load_in_4bit=false"
            )

    @property
    def prompt_version(self) -> int | None:
        """Version of the prompt form with tools, for fingerprints; None without tools."""
        return PROMPT_VERSION if self.tools == "auto" else None

    @property
    def in_4bit(self) -> bool:
        """`load_in_4bit` with `auto` resolved by the installed packages, not by the machine's GPU: the login node that
        plans and the jobs that train and evaluate must come to the same fingerprint."""
        if self.load_in_4bit != "auto":
            return self.load_in_4bit is True
        adapted = self.lora_r > 0 and self.model_name not in BUNDLED_NAMES
        return adapted and find_spec("bitsandbytes") is not None

    @property
    def effective_lora_alpha(self) -> int:
        """`lora_alpha`, or twice the rank."""
        return 2 * self.lora_r if self.lora_alpha is None else self.lora_alpha
