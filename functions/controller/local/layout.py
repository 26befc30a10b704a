"""Paths of the state directory. Only `make_directories` and `accelerator_fault_files` touch the disk."""

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

# sun_path holds 108 bytes on Linux and 104 on macOS; SeaweedFS and the gateway need a few for suffixes.
SOCKET_PATH_MAX_BYTES = 96
# A replica's sockets contain the name of its pool, which may be long.
SOCKET_NAME_MAX_BYTES = 84


# Secrets that the regions of one machine share; `secret` returns their shared path.
SHARED_SECRETS = frozenset({"pepper", "demo-keys.json", "regions-token"})


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Paths below `root`, which is absolute and resolved because it also marks the fleet's processes."""

    root: Path
    region: str | None = None  # if set, `root` is below `home`

    @classmethod
    def at(cls, state_dir: Path, region: str | None = None) -> "StateLayout":
        home = state_dir.resolve()
        return cls(home) if region is None else cls(home / "regions" / region, region)

    @property
    def home(self) -> Path:
        """Directory that regions share; without regions, the state directory itself."""
        return self.root if self.region is None else self.root.parent.parent

    @property
    def regions_file(self) -> Path:
        return self.home / "regions.json"

    @property
    def regions_lock(self) -> Path:
        return self.home / "regions.lock"

    @property
    def run_dir(self) -> Path:
        return self.root / "run"

    @property
    def logs_dir(self) -> Path:
        return self.root / "logs"

    @property
    def tls_dir(self) -> Path:
        return self.home / "tls"

    @property
    def secrets_dir(self) -> Path:
        return self.root / "secrets"

    @property
    def gitops_dir(self) -> Path:
        """Bare repository whose branch defines the desired fleet."""
        return self.home / "gitops.git"

    @property
    def former_config_dir(self) -> Path:
        """Location of the configuration before the repository existed; it is imported, then removed."""
        return self.home / "config"

    @property
    def models_dir(self) -> Path:
        return self.home / "models"

    @property
    def adapter_cache_dir(self) -> Path:
        return self.root / "cache" / "adapters"

    @property
    def download_dir(self) -> Path:
        return self.root / "cache" / "downloads"

    @property
    def traces_dir(self) -> Path:
        """Request traces, which the gateway writes and `shoal trace` reads."""
        return self.root / "gateway" / "traces"

    @property
    def drills_dir(self) -> Path:
        return self.root / "drills"

    @property
    def monitoring_dir(self) -> Path:
        """Prometheus' configuration, its rules and the addresses of the agents."""
        return self.root / "monitoring"

    def data_dir(self, name: str) -> Path:
        return self.root / "data" / name

    @property
    def ledger_file(self) -> Path:
        return self.run_dir / "processes.json"

    @property
    def target_file(self) -> Path:
        return self.run_dir / "target.json"

    @property
    def revisions_file(self) -> Path:
        """Results of the branch's revisions. They are not in run/, because they must outlive every process."""
        return self.data_dir("controller") / "revisions.json"

    @property
    def scaling_file(self) -> Path:
        """Replica counts that the autoscaler decided, numbers of the warm replicas, and measured speeds."""
        return self.data_dir("controller") / "scaling.json"

    @property
    def base_versions_file(self) -> Path:
        """Base version that each replica of a pool is started from."""
        return self.data_dir("controller") / "base-versions.json"

    @property
    def forecasts_file(self) -> Path:
        """State of the pools' forecasts. If the file is removed, they start anew."""
        return self.data_dir("controller") / "forecasts.json"

    def accelerator_fault_file(self, replica_id: str) -> Path:
        """Return the file that exists if the replica's accelerator failed; its engine is then not started."""
        return self.root / "replica" / replica_id / "accelerator-fault"

    def simulated_accelerator_file(self, replica_id: str) -> Path:
        """Return the file with the errors that the replica's simulated accelerator reports."""
        return self.root / "replica" / replica_id / "simulated-accelerator.json"

    def accelerator_fault_files(self) -> list[Path]:
        return sorted((self.root / "replica").glob("*/accelerator-fault"))

    def standby_file(self, replica_id: str) -> Path:
        """Return the file whose existence makes the replica's agent start warm."""
        return self.root / "replica" / replica_id / "standby"

    @property
    def registry_rows_file(self) -> Path:
        """Models, keys and rollouts as the registry had them last. Without the file, the registry is believed as it
        is."""
        return self.data_dir("controller") / "registry-rows.json"

    @property
    def controller_lock(self) -> Path:
        return self.run_dir / "controller.lock"

    @property
    def prepare_lock(self) -> Path:
        return self.run_dir / "prepare.lock"

    @property
    def ca_file(self) -> Path:
        return self.tls_dir / "ca.pem"

    @property
    def ca_bundle_file(self) -> Path:
        """Authorities of this machine and ours, for SSL_CERT_FILE in a shell."""
        return self.tls_dir / "bundle.pem"

    @property
    def server_cert_file(self) -> Path:
        return self.tls_dir / "server.pem"

    @property
    def server_key_file(self) -> Path:
        return self.tls_dir / "server.key"

    def secret(self, name: str) -> Path:
        return (self.home / "secrets" if name in SHARED_SECRETS else self.secrets_dir) / name

    def credentials(self, role: str) -> Path:
        return self.secret(f"{role}-credentials.json")

    def bus_login(self, user: str) -> Path:
        return self.secret(f"{user}-bus")

    @property
    def demo_keys_file(self) -> Path:
        return self.secret("demo-keys.json")

    @property
    def ports_file(self) -> Path:
        return self.run_dir / "ports.json"

    def log_file(self, process: str) -> Path:
        return self.logs_dir / f"{process}.log"

    def socket(self, name: str) -> Path:
        """Return a Unix socket's path: in run/, or in a short private directory if that path is too long; if that is
        too long too, with a hash as its name."""
        short = self._short_socket_dir
        for path in (self.run_dir / name, short / name):
            if _fits(path):
                return path
        return short / f"{_short_hash(name)}.sock"

    @property
    def _short_socket_dir(self) -> Path:
        return Path(tempfile.gettempdir()) / f"shoal-{_short_hash(str(self.root))}"

    @property
    def control_socket(self) -> Path:
        return self.socket("controller.sock")

    @property
    def handover_socket(self) -> Path:
        return self.socket("gateway-handover.sock")

    def make_directories(self) -> None:
        """Create the directories. Those for secrets and sockets are open to their owner only."""
        for directory in (self.root, self.logs_dir, self.tls_dir, self.models_dir, self.download_dir):
            directory.mkdir(parents=True, exist_ok=True)
        private = [self.run_dir, self.secrets_dir, self.home / "secrets"]
        if not _fits(self.run_dir / ("x" * SOCKET_NAME_MAX_BYTES)):
            private.append(self._short_socket_dir)
        for directory in private:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            directory.chmod(0o700)
        for name in ("s3", "bus", "registry", "controller", "traces", "prometheus"):
            self.data_dir(name).mkdir(mode=0o700, parents=True, exist_ok=True)


def _fits(socket: Path) -> bool:
    return len(str(socket).encode()) <= SOCKET_PATH_MAX_BYTES


def _short_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]
