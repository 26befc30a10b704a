"""Store of request traces: ClickHouse over HTTP, or chDB in a process of its own that answers as ClickHouse does.

    schema        tables, their migrations and retention, from the columns of `TraceRow`
    client        HTTP: rows in, questions out
    questions     what commands and routes ask, as SQL that is right before merges
    local_server  chDB behind ClickHouse's own HTTP interface: one client speaks to both

May import api and telemetry. A row is in the store once by (tenant, arrival, request id): a request id alone may be the
caller's own words, and be said twice.
"""
