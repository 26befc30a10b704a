"""Manifests that must be rejected, each with the place of its mistake and words that its message must contain.

Each case is one file that joins the demo configuration (`demo_files`), so that it can be loaded here and pushed to a
running fleet elsewhere. In `text`, ▲ is right before the character at which the problem must be reported.
"""

from dataclasses import dataclass

HEX = "0123456789abcdef" * 4
MARK = "▲"


@dataclass(frozen=True)
class Invalid:
    name: str
    path: str
    content: bytes
    line: int  # 0: the file as a whole
    column: int
    says: tuple[str, ...]  # all of these are in the message
    problems: int = 1  # how many the file has in all


def _case(name: str, text: str, *says: str, path: str = "policies/zz.yaml", problems: int = 1) -> Invalid:
    assert text.count(MARK) == 1, f"{name}: one {MARK} in the text"
    before = text[: text.index(MARK)]
    line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
    return Invalid(name, path, text.replace(MARK, "").encode(), line, column, says, problems)


def _object(kind: str, name: str, spec: str, *, api: str = "shoal.dev/v1alpha1") -> str:
    return f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{spec}"


def _tenant(spec: str, name: str = "initech") -> str:
    return _object("Tenant", name, spec)


def _quota(spec: str, name: str = "bronze") -> str:
    return _object("QuotaPolicy", name, spec)


def _routing(spec: str) -> str:
    return _object("RoutingPolicy", "special", spec)


def _admission(spec: str) -> str:
    return _object("AdmissionPolicy", "special", spec)


def _rollout(*stages: str) -> str:
    return _object("RolloutPolicy", "careful", "  stages:\n" + "".join(f"    - {stage}\n" for stage in stages))


def _rollout_with(field: str) -> str:
    return _object("RolloutPolicy", "careful", f"  stages: [{{percent: 100}}]\n  {field}\n")


def _halts(expression: str) -> str:
    return _rollout(f"{{percent: 5, duration: 5m, autoHalt: [{expression}]}}", "{percent: 100}")


def _pool(args: str = "[--max-model-len=2048]", labels: str = "{shoal.dev/pool: other}", more: str = "") -> str:
    return f"""\
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata:
  name: other
  labels: {labels}
spec:
  predictor:
    minReplicas: 2
{more}    model:
      modelFormat: {{name: vLLM}}
      args: {args}
"""


def _scales(rules: str, replicas: str = "{min: 2, max: 4}", pool: str = "other") -> str:
    spec = f"  pool: {pool}\n  replicas: {replicas}\n{rules}"
    return _pool(more="    maxReplicas: 4\n") + "---\n" + _object("AutoscalingPolicy", "other", spec)


def _model(spec: str, name: str = "acme.new") -> str:
    return _object("Model", name, spec)


_VERSIONS = '  versions: [{name: v1, artifact: "s3://shoal-models/acme/new/v1"}]\n'
_LORA = "  id: acme/new\n  type: lora\n  base: smollm2-135m\n"
_FALLBACK = "  pools: [other]\n"
_OTHER = _pool() + "---\n"


_LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{f'*{before},' * 7}{MARK if after == 'e' else ''}{f'*{before},' * 2}*{before}]\n"
    for before, after in zip("abcdef", "bcdefg", strict=True)
)


INVALID: tuple[Invalid, ...] = (
    # --- Text that is not YAML, or too large
    _case("tab", _tenant("▲\ttier: standard\n"), "not YAML", "'\\t'"),
    _case("unclosed bracket", _tenant("  tier: standard\n  models: [a\n") + "▲", "not YAML"),
    _case("unclosed quote", _tenant('  tier: "standard\n') + "▲", "not YAML"),
    _case("bad indentation", _tenant("  tier: standard\n ▲models: []\n"), "not YAML"),
    _case("colon in a value", _tenant("  tier: a▲: b\n"), "not YAML", "mapping values are not allowed here"),
    _case("merge key", _tenant("  ▲<<: {tier: standard}\n"), 'merge keys ("<<") are not supported; write the keys out'),
    _case(
        "tag",
        _tenant("  tier: ▲!!python/name:os.system x\n"),
        "the tag",
        "is not supported; write the value without it",
    ),
    _case("alias to nothing", _tenant("  tier: ▲*standard\n"), "the alias *standard has no anchor &standard before it"),
    _case("number as a key", _tenant("  tier: standard\n  ▲1: 2\n"), "a key must be text; found the number 1"),
    _case(
        "second of two documents", _tenant("  tier: standard\n") + "---\n" + _tenant("  tier: ▲8\n", "hooli"), "text"
    ),
    _case("billion laughs", _LAUGHS, "more than 100000 values in one document, aliases written out"),
    _case("too deep", "a: " + "[" * 31 + "▲[" + "]" * 32, "nested deeper than 32 levels"),
    Invalid("not UTF-8", "policies/zz.yaml", b"kind: Tenant\nname: caf\xe9\n", 2, 10, ("not UTF-8", "0xe9")),
    Invalid("control character", "policies/zz.yaml", b"kind: \x07", 1, 7, ("U+0007 is not allowed",)),
    Invalid("too large", "policies/zz.yaml", b"#" * (1024 * 1024 + 1), 0, 0, ("over the limit", "split the file")),
    # --- Heads
    _case("kind misspelt", _tenant("  tier: standard\n").replace("Tenant", "▲Tennant"), 'did you mean "Tenant"?'),
    _case("later version", _object("Tenant", "x", "  {}", api="▲shoal.dev/v1alpha2"), "allowed: shoal.dev/v1alpha1"),
    _case("no kind", "▲apiVersion: shoal.dev/v1alpha1\nmetadata: {name: x}\n", "is required, and not there"),
    _case("kind is a list", "apiVersion: shoal.dev/v1alpha1\nkind: ▲[Tenant]\n", "found a list; allowed: text"),
    _case("a list of objects", "▲- kind: Tenant\n", "found a list; allowed: an object with apiVersion and kind"),
    _case(
        "old KServe", _pool().replace("serving", "▲serving").replace("v1beta1", "v1alpha1"), "serving.kserve.io/v1beta1"
    ),
    # --- Keys and types
    _case("key misspelt", _tenant("  ▲teir: standard\n"), "unknown key; allowed: tier", 'did you mean "tier"?'),
    _case("key twice", _tenant("  tier: standard\n  ▲tier: enterprise\n"), 'the key "tier" occurs twice', "line 5"),
    _case("snake case", _quota("  limits: {▲requests_per_minute: 5}\n"), 'did you mean "requestsPerMinute"?'),
    _case("another kind's key", _quota("  ▲tier: standard\n"), "unknown key; allowed: weight, limits"),
    _case("required key", _routing("  session: {ttl: 5m}\n").replace("spec:", "▲spec:"), "is required, and not there"),
    _case("text for a number", _quota('  limits: {maxOutputTokens: ▲"4096"}\n'), "allowed: a whole number"),
    _case("fraction for a whole", _quota("  limits: {concurrentRequests: ▲1.5}\n"), "allowed: a whole number"),
    _case("huge number", _quota("  limits: {concurrentRequests: ▲10000000000000000}\n"), "allowed: at most 10000"),
    _case("endless number", _quota(f"  limits: {{concurrentRequests: ▲{'9' * 40}}}\n"), "allowed: a whole number"),
    _case("not a number", _quota("  weight: ▲.nan\n"), 'found ".nan"; allowed: a number'),
    _case("infinite", _quota("  weight: ▲-.inf\n"), 'found "-.inf"; allowed: a number'),
    _case("negative limit", _quota("  limits: {requestsPerMinute: ▲-5}\n"), "found the number -5; allowed: at least 1"),
    _case("weight of nothing", _quota("  weight: ▲0\n"), "allowed: more than 0"),
    _case("mapping for a list", _routing("  pools: ▲{a: b}\n"), "found a mapping; allowed: a list"),
    _case(
        "old boolean", _object("Model", "acme.x", f"{_LORA}  rollout: ▲true\n{_VERSIONS}"), "found true; allowed: text"
    ),
    _case("upper case name", _tenant("  tier: standard\n", "▲Initech"), "allowed: 1 to 63 of a-z 0-9"),
    _case("empty list", _routing("  pools: ▲[]\n"), "a list of at least 1"),
    # --- Tenants
    _case("short hash", _tenant("  tier: standard\n  keys: [{id: a, hmacSha256: ▲abc}]\n"), "64 hex digits"),
    _case(
        "no such day",
        _tenant(f'  tier: standard\n  keys: [{{id: a, hmacSha256: "{HEX}", expires: ▲2027-02-30}}]\n'),
        "allowed: a date such as 2027-06-30",
    ),
    _case(
        "class misspelt",
        _tenant(f'  tier: standard\n  keys: [{{id: a, hmacSha256: "{HEX}", maxClass: ▲interactiv}}]\n'),
        "allowed: interactive, near-real-time, batch",
        'did you mean "interactive"?',
    ),
    _case("star inside", _tenant('  tier: standard\n  models: [▲"a*b"]\n'), "one * at the end"),
    _case(
        "no such tier", _tenant("  tier: ▲enterprize\n"), "there is no such QuotaPolicy", 'did you mean "enterprise"?'
    ),
    _case("tenant twice", _tenant("  tier: standard\n", "▲acme"), 'Tenant "acme" is declared twice', "tenants.yaml:"),
    _case(
        "key id twice",
        _tenant(f'  tier: standard\n  keys: [{{id: a, hmacSha256: "{HEX}"}}, {{id: ▲a, hmacSha256: "{HEX}"}}]\n'),
        'the key id "a" is already used by tenant initech at policies/zz.yaml:6',
    ),
    # --- Quotas
    _case(
        "output beyond context",
        _quota("  limits: {maxContextTokens: 1000, maxOutputTokens: ▲2000}\n"),
        "found 2000; allowed: at most maxContextTokens, 1000",
    ),
    # --- Routing
    _case("no unit", _routing("  pools: [a*]\n  session: {ttl: ▲300}\n"), "allowed: text"),
    _case("unknown unit", _routing("  pools: [a*]\n  session: {ttl: ▲5min}\n"), "ms, s, m or h, such as 500ms or 5m"),
    _case("endless duration", _routing("  pools: [a*]\n  session: {ttl: ▲9999h}\n"), "up to 720h"),
    _case("regular expression", _routing('  pools: [▲"llama-[0-9]+"]\n'), "one * at the end, such as llama-*"),
    _case("no such pool", _routing("  pools: [▲smollm2-135]\n"), 'did you mean "smollm2-135m"?'),
    _case("pattern taken", _routing('  pools: [▲"*"]\n'), "are already taken by RoutingPolicy default at"),
    _case("bound below the mean", _routing("  pools: [a*]\n  boundedLoad: ▲0.9\n"), "allowed: at least 1"),
    _case("percent as a ratio", _routing("  pools: [a*]\n  spreadAbove: {utilization: ▲85}\n"), "allowed: at most 1"),
    _case("no attempts", _routing("  pools: [a*]\n  retry: {maxAttempts: ▲0}\n"), "allowed: at least 1"),
    _case("unknown source", _routing("  pools: [a*]\n  prefix: {source: ▲event}\n"), 'did you mean "events"?'),
    _case(
        "fallback to itself",
        _OTHER + _routing(f"{_FALLBACK}  fallback: [{{when: saturated, from: other, to: ▲other}}]\n"),
        "which is also the source; allowed: another pool",
    ),
    _case(
        "fallback to nowhere",
        _OTHER + _routing(f"{_FALLBACK}  fallback: [{{when: saturated, from: other, to: ▲smollm}}]\n"),
        "no InferenceService has that shoal.dev/pool",
    ),
    _case(
        "fallback for nobody",
        _OTHER
        + _routing(f"{_FALLBACK}  fallback: [{{when: saturated, from: other, to: smollm2-135m, tiers: [▲gold]}}]\n"),
        "there is no such QuotaPolicy; allowed: enterprise, standard",
    ),
    _case(
        "fallback in a circle",
        _OTHER
        + _routing(
            f"{_FALLBACK}  fallback:\n    - {{when: saturated, from: other, to: smollm2-135m}}\n"
            "    - {when: unavailable, from: smollm2-135m, to: ▲other}\n"
        ),
        "closes a cycle of pools: other -> smollm2-135m -> other",
    ),
    _case(
        "circle through a cascade",
        _OTHER
        + _routing(
            f"{_FALLBACK}  cascade: [{{from: smollm2-135m, to: other}}]\n"
            "  fallback: [{when: saturated, from: other, to: ▲smollm2-135m}]\n"
        ),
        "closes a cycle of pools",
    ),
    _case(
        "classifier to nowhere",
        _routing("  pools: [a*]\n  classifier: {model: auto, otherwise: ▲smollm}\n"),
        "no InferenceService has that shoal.dev/pool",
    ),
    _case(
        "classifier with a model's name",
        _routing("  pools: [a*]\n  classifier: {model: ▲smollm2-135m, otherwise: smollm2-135m}\n"),
        "is already the name of a base model; choose one that no pool has",
    ),
    _case(
        "a script that nobody writes",
        _routing(
            "  pools: [a*]\n  classifier:\n    model: auto\n    otherwise: smollm2-135m\n"
            "    rules: [{when: {script: ▲latn}, to: smollm2-135m}]\n"
        ),
        'did you mean "latin"?',
    ),
    _case(
        "a threshold below nothing",
        _OTHER + _routing(f"{_FALLBACK}  cascade: [{{from: smollm2-135m, to: other, threshold: ▲-1}}]\n"),
        "allowed: at least 0",
    ),
    # --- Admission
    _case(
        "shares over the whole",
        _admission("  pools: [a*]\n  bands: ▲{interactive: {share: 0.7}, batch: {share: 0.4}}\n"),
        "add up to 1.1; allowed: at most 1",
    ),
    _case("no band", _admission("  pools: [a*]\n  bands: ▲{}\n"), "allowed: at least one of interactive"),
    _case(
        "band misspelt",
        _admission("  pools: [a*]\n  bands: {▲realtime: {share: 0.1}}\n"),
        'did you mean "near-real-time"?',
    ),
    _case("band without share", _admission("  pools: [a*]\n  bands: {▲batch: {ttftSlo: 2s}}\n"), "is required"),
    # --- Rollouts
    _case("over 100 percent", _rollout("{percent: 5, duration: 5m}", "{percent: ▲101}"), "allowed: at most 100"),
    _case("zero percent", _rollout("{percent: ▲0, duration: 5m}", "{percent: 100}"), "allowed: at least 1"),
    _case("never ends", _rollout("{percent: 5, duration: 5m}", "{percent: ▲50}"), "allowed for the last stage: 100"),
    _case(
        "stages descend",
        _rollout("{percent: 50, duration: 5m}", "{percent: ▲10, duration: 5m}", "{percent: 100}"),
        "found 10; allowed: more than the stage before it, 50",
    ),
    _case("stage without end", _rollout("▲{percent: 5}", "{percent: 100}"), "every stage but the last ends"),
    _case("no chance", _rollout_with("falseAlarmRate: ▲0%"), "above 0% and up to 50%, such as 1% or 0.5%"),
    _case("certainty", _rollout_with("falseAlarmRate: ▲100%"), "above 0% and up to 50%"),
    _case("chance without its unit", _rollout_with("falseAlarmRate: ▲0.01"), "found the number 0.01; allowed: text"),
    _case("sticky to a user", _rollout_with("sticky: ▲user"), "allowed: session, tenant"),
    _case("no stages", _object("RolloutPolicy", "careful", "  stages: ▲[]\n"), "a list of at least 1"),
    _case("no such metric", _halts('"▲error_rat > 2%"'), "there is no metric", 'did you mean "error_rate"?'),
    _case("scaling metric in a rollout", _halts('"▲kv_usage > 2%"'), "there is no metric"),
    _case("ratio without percent", _halts('"error_rate > ▲2"'), "allowed: a percentage such as 2%"),
    _case("ratio above all", _halts('"error_rate > ▲200%"'), "never above 100%"),
    _case("one equals sign", _halts("'p99_latency ▲= 2x'"), 'found "= 2x"; allowed here: > or <'),
    _case("cut off", _halts('"p99_latency >▲"'), "found the end; allowed here: a number"),
    _case("slo in a rollout", _halts('"p99_ttft > ▲2 * slo"'), "a multiple of the control group's such as 2x"),
    _case("expression is a number", _halts("▲5"), "found the number 5; allowed: text"),
    # --- Autoscaling
    _case("bounds crossed", _scales("", "{min: 2, max: ▲1}"), "found 1; allowed: at least min, 2", problems=2),
    _case("beyond the service", _scales("", "{min: 2, max: ▲9}"), "allowed: at most 4, the maxReplicas at"),
    _case("above the start", _scales("", "{min: ▲3, max: 4}"), "allowed: at most 2, the minReplicas at"),
    _case("scales no pool", _scales("", pool="▲othr"), 'did you mean "other"?'),
    _case("pool scaled twice", _scales("", pool="▲smollm2-135m"), "already has an AutoscalingPolicy"),
    _case("no step", _scales('  scaleUp: ["kv_usage > 85%▲"]\n'), "found the end", ": and a step such as +10% or -1"),
    _case("wrong way", _scales('  scaleUp: [▲"kv_usage > 85%: -1"]\n'), "a step that adds replicas, such as +10%"),
    _case("step without sign", _scales('  scaleDown: ["utilization < 40%: ▲1"]\n'), "allowed here: + or -"),
    _case("hold without unit", _scales('  scaleUp: ["kv_usage > 85% for 3▲: +1"]\n'), "a unit (ms, s, m, h)"),
    _case("half a replica", _scales('  scaleUp: ["kv_usage > 85%: ▲+0.5"]\n'), "a whole number of replicas"),
    _case(
        "time without unit",
        _scales('  scaleUp: ["p99_ttft > ▲0.5: +1"]\n'),
        "500ms or 2s, or a multiple of the promised bound",
    ),
    # --- Models
    _case(
        "lora without base",
        _model(f"  id: acme/new\n  type: lora\n{_VERSIONS}").replace("spec:", "▲spec:"),
        "is required for a lora",
        path="registry/zz.yaml",
    ),
    _case(
        "no such tenant",
        _model(f"  id: ▲acmee/new\n  type: lora\n  base: smollm2-135m\n{_VERSIONS}", "acmee.new"),
        'did you mean "acme"?',
    ),
    _case("no such base", _model(_LORA.replace("smollm2", "▲smolm2") + _VERSIONS), 'did you mean "smollm2-135m"?'),
    _case(
        "name disagrees",
        _model(_LORA.replace("acme/new", "▲acme/old") + _VERSIONS),
        'its metadata.name would be "acme.old"',
    ),
    _case("channel to nowhere", _model(f"{_LORA}{_VERSIONS}  channels: {{stable: ▲v2}}\n"), 'found "v2"; allowed: v1'),
    _case(
        "reserved channel",
        _model(f"{_LORA}{_VERSIONS}  channels: {{incoming-2: ▲v1}}\n"),
        "the name is reserved for versions that are being loaded",
    ),
    _case(
        "version twice",
        _model(_LORA + _VERSIONS.replace("}]", '}, {name: ▲v1, artifact: "s3://shoal-models/acme/new/v2"}]')),
        "occurs twice",
    ),
    _case(
        "artifact on the web",
        _model(_LORA + '  versions: [{name: v1, artifact: ▲"https://example.com/a"}]\n'),
        "allowed: s3://bucket/path",
    ),
    _case(
        "half a digest",
        _model(_LORA + _VERSIONS.replace("}]", ", digest: ▲sha256:abc}]")),
        "64 hex digits in lower case",
    ),
    _case("no such rollout", _model(f"{_LORA}{_VERSIONS}  rollout: ▲carefull\n"), "there is no such RolloutPolicy"),
    # --- Pools
    _case("no context window", _pool("▲[--dtype=float16]"), "--max-model-len is required, with a number of tokens"),
    _case(
        "format in lower case", _pool().replace("name: vLLM", "name: ▲vllm"), "allowed: vLLM, since KServe matches case"
    ),
    _case("pool twice", _pool(labels="{shoal.dev/pool: ▲smollm2-135m}"), "is already served by"),
    _case("replicas as text", _pool(more="    maxReplicas: ▲many\n"), "allowed: a whole number"),
    _case("replicas crossed", _pool(more="    maxReplicas: ▲1\n"), "allowed: at least minReplicas, 2"),
    _case(
        "forbidden variable",
        _pool(more="").replace("args:", "env: [{name: ▲PYTHONPATH, value: x}]\n      args:"),
        "not allowed by KServe",
    ),
)
