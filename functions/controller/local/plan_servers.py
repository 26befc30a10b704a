"""Specs of the servers of every fleet (S3, bus, registry, gateway), and of the trace store if chDB is installed."""

from functions.controller.local.context import HOST, PlanContext
from functions.controller.local.ports import GRPC_ABOVE
from functions.controller.local.spec import HttpProbe, ProcessSpec, TcpProbe, Timing

S3_CONFIG = "seaweed-s3.json"  # in the secrets directory: s3.json in SeaweedFS's format
BUS_CONFIG = "valkey.conf"  # in the secrets directory: a password must not show in the process list
TRACES_USER, TRACES_PASSWORD = "shoal", "traces-password"
GC_INTERVAL_S = 3600.0  # no other fleet uses the bucket
# Python excludes the working directory (the state tree, with its `data` and `config`) from the import path.
SAFE_PATH = ("PYTHONSAFEPATH", "1")


def s3(context: PlanContext) -> ProcessSpec:
    ports, layout = context.ports, context.layout
    flags = {
        "ip": HOST,
        "ip.bind": HOST,
        "dir": layout.data_dir("s3"),
        "master.port": ports.s3_master,
        "master.port.grpc": ports.s3_master + GRPC_ABOVE,
        "master.telemetry": "false",  # on by default; a local fleet sends no telemetry
        "master.electionTimeout": "1s",  # there is one master; 10 s would only delay the first answer
        "master.volumeSizeLimitMB": 1024,
        "volume.port": ports.s3_volume,
        "volume.port.grpc": ports.s3_volume + GRPC_ABOVE,
        "volume.max": 32,
        "volume.preStopSeconds": 0,
        "filer": "true",
        "filer.port": ports.s3_filer,
        "filer.port.grpc": ports.s3_filer + GRPC_ABOVE,
        "filer.localSocket": layout.socket("filer.sock"),
        "s3": "true",
        "s3.port": ports.s3,
        "s3.port.grpc": ports.s3 + GRPC_ABOVE,
        "s3.config": layout.secret(S3_CONFIG),
        "s3.localSocket": layout.socket("s3.sock"),
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
    }
    url = f"{context.s3_url}/healthz"
    return ProcessSpec(
        name="s3",
        role="s3",
        argv=(str(context.weed), "server", *(f"-{name}={value}" for name, value in flags.items())),
        readiness=HttpProbe(url),
        liveness=HttpProbe(url),
        # SeaweedFS's orderly stop waits 15 s for gRPC streams between its parts. Acknowledged writes are already
        # stored.
        timing=Timing(start_s=60, drain_s=2, liveness_failing_s=30),
        port=ports.s3,
    )


def bus(context: PlanContext) -> ProcessSpec:
    port = context.ports.bus
    probe = TcpProbe(HOST, port)
    config = context.layout.secret(BUS_CONFIG)
    return ProcessSpec(
        name="bus",
        role="bus",
        argv=(str(context.valkey_server), str(config), "--port", str(port), "--bind", HOST),
        readiness=probe,
        liveness=probe,
        timing=Timing(start_s=20, drain_s=5, liveness_failing_s=15),
        port=port,
    )


def registry(context: PlanContext) -> ProcessSpec:
    layout = context.layout
    env: dict[str, object] = {
        "HOST": HOST,
        "PORT": context.ports.registry,
        "TLS_CERT_FILE": layout.server_cert_file,
        "TLS_KEY_FILE": layout.server_key_file,
        "INTERNAL_TOKEN_FILE": layout.secret("internal-token"),
        "BUS_URL": context.bus_url,
        "BUS_PASSWORD_FILE": layout.bus_login("registry"),
        "SEALED_HEARTBEATS": "true",
        "STATE_DIR": layout.data_dir("registry"),
        "PEPPER_FILE": layout.secret("pepper"),
        "ENVIRONMENT": context.environment,
        "S3_ENDPOINT_URL": context.s3_url,
        "S3_CREDENTIALS_FILE": layout.secret("s3.json"),
        "MODELS_DIR": context.models_root,
        "GC_INTERVAL_S": GC_INTERVAL_S,
        "DRILLS_DIR": layout.drills_dir,
    }
    if context.has_trace_store:
        env |= {
            "TRACE_STORE_URL": context.traces_url,
            "TRACE_STORE_USER": TRACES_USER,
            "TRACE_STORE_PASSWORD_FILE": layout.secret(TRACES_PASSWORD),
        }
    if context.prometheus is not None:
        env["PROMETHEUS_URL"] = f"http://{HOST}:{context.ports.prometheus}"
    if layout.region is not None:
        env |= {
            "REGION": layout.region,
            "REGIONS_FILE": layout.regions_file,
            "REGIONS_TOKEN_FILE": layout.secret("regions-token"),
            "REGIONS_CA_FILE": layout.ca_file,
        }
    return ProcessSpec(
        name="registry",
        role="registry",
        argv=(str(context.python), "-m", "functions.registry"),
        env=environment("SHOAL_REGISTRY_", env),
        inherits=("SHOAL_REGISTRY_",),
        readiness=HttpProbe(f"{context.registry_url}/readyz", ca_file=layout.ca_file),
        liveness=HttpProbe(f"{context.registry_url}/healthz", ca_file=layout.ca_file),
        after=("bus",),
        timing=Timing(start_s=60, drain_s=10),
        port=context.ports.registry,
    )


def gateway(context: PlanContext) -> ProcessSpec:
    layout, ports = context.layout, context.ports
    env: dict[str, object] = {
        "HOST": HOST,
        "PORT": ports.gateway,
        "TLS_CERT_FILE": layout.server_cert_file,
        "TLS_KEY_FILE": layout.server_key_file,
        "METRICS_PORT": ports.gateway_metrics,
        "REGISTRY_URL": context.registry_url,
        "REGISTRY_CA_FILE": layout.ca_file,
        "INTERNAL_TOKEN_FILE": layout.credentials("gateway"),
        "PEPPER_FILE": layout.secret("pepper"),
        "BUS_URL": context.bus_url,
        "BUS_PASSWORD_FILE": layout.bus_login("gateway"),
        "SEALED_HEARTBEATS": "true",
        "SNAPSHOT_CACHE_FILE": layout.root / "gateway" / "snapshot.json",
        "TRACE_DIR": layout.traces_dir,
        "HANDOVER_SOCKET": layout.handover_socket,
        "S3_ENDPOINT_URL": context.s3_url,
        "S3_CREDENTIALS_FILE": layout.secret("s3.json"),
        "TOKENIZERS_DIR": context.models_root,  # for comparing prompts with what replicas report of their caches
        "DRAIN_TIMEOUT_S": context.drain_timeout_s,
    }
    if context.has_trace_store:
        env |= {
            "TRACE_STORE_URL": context.traces_url,
            "TRACE_STORE_USER": TRACES_USER,
            "TRACE_STORE_PASSWORD_FILE": layout.secret(TRACES_PASSWORD),
        }
    return ProcessSpec(
        name="gateway",
        role="gateway",
        argv=(str(context.python), "-m", "functions.gateway"),
        env=environment("SHOAL_GATEWAY_", env),
        inherits=("SHOAL_GATEWAY_",),
        # The gateway is ready only when a replica is, so its start limit includes the engines' start time.
        readiness=HttpProbe(f"{context.gateway_url}/readyz", ca_file=layout.ca_file),
        liveness=HttpProbe(f"{context.gateway_url}/healthz", ca_file=layout.ca_file),
        after=("registry",),
        takes_over=True,
        door=layout.handover_socket,
        timing=Timing(start_s=900, drain_s=context.drain_timeout_s + 5),
        port=ports.gateway,
    )


def traces(context: PlanContext) -> ProcessSpec:
    """Return the trace store's spec. No process waits for it: until it answers, traces stay in the gateway's files."""
    env: dict[str, object] = {
        "HOST": HOST,
        "PORT": context.ports.traces,
        "DIRECTORY": context.layout.data_dir("traces"),
        "USER": TRACES_USER,
        "PASSWORD_FILE": context.layout.secret(TRACES_PASSWORD),
    }
    probe = HttpProbe(f"{context.traces_url}/ping")
    return ProcessSpec(
        name="traces",
        role="traces",
        argv=(str(context.python), "-m", "functions.telemetry.store"),
        env=environment("SHOAL_TRACE_STORE_", env),
        inherits=("SHOAL_TRACE_STORE_",),
        readiness=probe,
        liveness=probe,
        timing=Timing(start_s=60, drain_s=10, liveness_failing_s=60),
        port=context.ports.traces,
    )


def environment(prefix: str, values: dict[str, object]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted([(prefix + name, str(value)) for name, value in values.items()] + [SAFE_PATH]))
