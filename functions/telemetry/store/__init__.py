"""Store of request traces: ClickHouse over HTTP, or chDB in a separate process with ClickHouse's interface.

    schema        tables, their migrations and retention, from the columns of `TraceRow`
    client        HTTP client: insert rows, run queries
    questions     queries of commands and routes, as SQL that is right before merges
    local_server  chDB behind ClickHouse's own HTTP interface: one client works with both

May import api and telemetry. A row is in the store once per (tenant, arrival, request id): the caller may choose
the request id, and may use one twice.
"""
