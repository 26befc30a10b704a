"""The trace parts of a gateway (sink, files and shipping) as a process that can be killed.

    python -m loadtests.traces.gateway_process FOLDER PORT NUMBER SECONDS MAX_BYTES ROWS_A_SECOND

FOLDER/rows-NUMBER has the number of rows offered and the number of rows in files. It is shared memory and therefore
right even after SIGKILL (the second number may be 10 ms old).
"""

import json
import mmap
import struct
import sys
import time
from pathlib import Path

from functions.gateway.settings import GatewaySettings
from functions.gateway.trace_outputs import TraceOutputs
from functions.telemetry.trace_row import TraceRow
from loadtests.traces.rows import row
from loadtests.traces.store_process import PASSWORD

ROWS = struct.Struct("qq")  # offered, in files
_TICK_S = 0.01
_WAITING_ROWS = 8192  # half of the sink's limit, above which it drops rows
DELIVERY_S = 240.0  # a killed store takes a minute to start on a busy machine


class Made:
    def __init__(self, name: str) -> None:
        self._name, self._at_s = name, time.time()

    def row(self) -> TraceRow:
        return row(self._name, self._at_s)


def main(folder: Path, port: int, number: int, seconds: float, max_bytes: int, rows_per_s: int) -> None:
    password = folder / "password"
    password.write_text(PASSWORD)
    settings = GatewaySettings(
        internal_token_file=password, pepper_file=password, snapshot_cache_file=folder / "snapshot",
        trace_dir=folder / "traces", trace_max_bytes=max_bytes, trace_store_url=f"http://127.0.0.1:{port}",
        trace_store_user="shoal", trace_store_password_file=password,
    )  # fmt: skip
    outputs = TraceOutputs(settings, f"gateway-{number}")
    outputs.start()
    _offer(outputs, folder / f"rows-{number}", f"g{number}", seconds, rows_per_s)
    deadline_s = time.monotonic() + DELIVERY_S
    while time.monotonic() < deadline_s and not _is_through(outputs):
        time.sleep(0.2)
    outputs.close()
    dropped = {
        f"{sample.labels['receiver']} {sample.labels['reason']}": int(sample.value)
        for metric in outputs.collect() for sample in metric.samples if sample.name.endswith("dropped_total")
    }  # fmt: skip
    print(json.dumps({reason: rows for reason, rows in dropped.items() if rows}), flush=True)


def _offer(outputs: TraceOutputs, counted: Path, prefix: str, seconds: float, rows_per_s: int) -> None:
    """Offer the due rows every 10 ms."""
    with counted.open("w+b") as file:
        file.write(bytes(ROWS.size))
        file.flush()
        shared, count, began_s = mmap.mmap(file.fileno(), ROWS.size), 0, time.monotonic()
        while count < seconds * rows_per_s:
            due = int(min(time.monotonic() - began_s, seconds) * rows_per_s)
            due = min(due, count + _WAITING_ROWS - outputs.sink.waiting_rows)  # a busy disk may be slower than the rows
            for number in range(count, due):
                outputs.sink.offer(Made(f"{prefix}-{number}"))
                ROWS.pack_into(shared, 0, number + 1, outputs.sink.spooled_total)
            count = max(count, due)
            ROWS.pack_into(shared, 0, count, outputs.sink.spooled_total)
            time.sleep(_TICK_S)


def _is_through(outputs: TraceOutputs) -> bool:
    samples = {sample.name: sample.value for metric in outputs.collect() for sample in metric.samples}
    waits = samples["shoal_trace_rows_waiting"] + samples["shoal_trace_spool_waiting_bytes"]
    return waits == 0 and samples["shoal_trace_receiver_up"] == 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:4]), float(sys.argv[4]), *map(int, sys.argv[5:7]))  # type: ignore[misc]
