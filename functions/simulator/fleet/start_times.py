"""Start times: seconds from the decision to start a replica to its first answer, by the source of its weights.

    cold    accelerator + S3 + engine        a node has to be found or bought first
    s3      S3 + engine                      the node exists, no node has the weights
    peer    peer + engine                    another node has the weights
    disk    disk + engine                    the node's own disk has the weights
    warm    promotion                        all of it has been done before: only the state changes

The defaults are for an 8B model of 15 GB, from published figures. Run:ai's streamer: 28.2 s from S3 at four streams
(4.9 at 32), and vLLM ready 18.3 s after its weights are loaded (23.2 s in total; the rest is the engine's own start).
ServerlessLLM: 4.4 s for safetensors from local NVMe. 15 GB over 25 GbE at 2.5 GB/s take 6 s. An accelerator takes
five minutes, as clouds state for available ones.

Worked example (test_start_time_depends_on_its_source): from disk 4.4 + 18.3 = 22.7 s, from a peer 24.3, from S3
46.5, cold 346.5.
"""

from dataclasses import dataclass
from typing import Literal

StartSource = Literal["cold", "s3", "peer", "disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    accelerator_s: float = 300.0
    s3_s: float = 28.2
    peer_s: float = 6.0
    disk_s: float = 4.4
    engine_s: float = 18.3
    promote_s: float = 0.5

    def before_node_s(self, source: StartSource) -> float:
        """Return the seconds until there is an accelerator, from which on it costs; 0 unless the source is `cold`."""
        return self.accelerator_s if source == "cold" else 0.0

    def on_node_s(self, source: StartSource) -> float:
        """Return the seconds from the accelerator to ready: fetch the weights from `source`, then start the engine."""
        weights_s = {"cold": self.s3_s, "s3": self.s3_s, "peer": self.peer_s, "disk": self.disk_s}
        return weights_s[source] + self.engine_s

    def of(self, source: StartSource) -> float:
        return self.before_node_s(source) + self.on_node_s(source)
