"""`python -m loadtests.bus [--replicas 5000] [--gateways 40] [--accounts 100] [--messages 2000] [-o json]`.

Measures on one Valkey, with the product's own encoders, clients and views, the cost of each kind of message for its
sender, the server and a gateway. Computes from that the traffic of a fleet (docs/measurements/README.md).
"""

import argparse
import json
import sys
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table

from loadtests.bus import measure
from loadtests.bus.server import Server, running
from loadtests.bus.traffic import Costs, Fleet, Load, loads

_HOMES_EACH = 64
_HEARD_S = 5.0


def main() -> None:
    options = _options()
    fleet = replace(Fleet(), replicas=options.replicas, gateways=options.gateways, accounts=options.accounts)
    with running() as server:
        costs = _measured(server, fleet, options.messages, options.rate)
    computed = loads(fleet, costs)
    if options.output == "json":
        print(
            json.dumps({"measured": asdict(costs), "fleet": asdict(fleet), "computed": [asdict(it) for it in computed]})
        )
        return
    console = Console(width=140)
    console.print(_measured_table(costs))
    console.print(_computed_table(fleet, computed))


def _measured(server: Server, fleet: Fleet, each: int, rate: float) -> Costs:
    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    say("heartbeats")
    heartbeat = measure.heartbeat_cost(server, each)
    heard = measure.heard_cost(server, fleet.replicas, rate, _HEARD_S)
    say("leases")
    leases = measure.lease_cost(server, max(20, each // 10))
    say("session homes and prefixes")
    return Costs(
        heartbeat=heartbeat,
        heard=heard,
        leases=leases,
        homes=measure.homes_cost(server, _HOMES_EACH, each // 4),
        homes_received_us=measure.homes_received_us(_HOMES_EACH, each // 4),
        homes_each=_HOMES_EACH,
        delta=measure.prefix_cost(server, fleet.delta_blocks, each // 4),
        delta_received_us=measure.prefix_received_us(fleet.delta_blocks, each // 4),
        ask=measure.ask_cost(server, each // 4),
    )


def _measured_table(costs: Costs) -> Table:
    table = Table("message", "bytes", "sender, us", "Valkey, us", "and each subscriber, us", "at a gateway, us")
    table.title = "measured: CPU time of one message"
    for name, sent, heard_us in (
        ("heartbeat", costs.heartbeat, costs.heard.gateway_us),
        (f"session homes, {costs.homes_each}", costs.homes, costs.homes_received_us),
        ("prefix delta", costs.delta, costs.delta_received_us),
        ("prefix ask", costs.ask, 0.0),
    ):
        figures = (sent.sender_us, sent.server_us, sent.subscriber_us, heard_us)
        table.add_row(name, f"{sent.message_bytes:,}", *(f"{figure:.1f}" for figure in figures))
    leases = costs.leases
    moved = f"{leases.in_bytes:.0f} + {leases.out_bytes:.0f}"
    table.add_row("account in a lease round", moved, "", f"{leases.account_us:.1f}", "", f"{leases.gateway_us:.1f}")
    table.caption = (
        f"received at {costs.heard.heard_per_s:,.0f}/s; all stored heartbeats read in {costs.heard.catch_up_s:.2f} s "
        f"of CPU time; a lease call without accounts takes {leases.call_us:.0f} us"
    )
    return table


def _computed_table(fleet: Fleet, computed: list[Load]) -> Table:
    table = Table("traffic", "messages/s", "Valkey in, MB/s", "out, MB/s", "CPU, s/s", "gateway in, MB/s", "CPU, s/s")
    table.title = (
        f"computed: {fleet.replicas:,} replicas, {fleet.gateways} gateways, {fleet.requests_per_s:,.0f} requests/s"
    )
    for load in computed:
        table.add_row(
            load.what,
            f"{load.messages_per_s:,.0f}",
            f"{load.valkey_in / 1e6:,.1f}",
            f"{load.valkey_out / 1e6:,.1f}",
            f"{load.valkey_cpu:.2f}",
            f"{load.gateway_bytes / 1e6:.2f}",
            f"{load.gateway_cpu:.2f}",
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bus", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, default=5000)
    parser.add_argument("--gateways", type=int, default=40)
    parser.add_argument("--accounts", type=int, default=100, help="accounts in use at each gateway")
    parser.add_argument("--messages", type=int, default=2000, help="messages of each kind, per number of subscribers")
    parser.add_argument("--rate", type=float, default=1000.0, help="heartbeats a second while a gateway is measured")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    return parser.parse_args()


if __name__ == "__main__":
    main()
