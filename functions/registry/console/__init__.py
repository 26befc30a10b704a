"""The console: one page for people who operate the fleet, and the routes that only it uses.

    page/, page.py      what a browser loads: no framework, no build step, nothing from other hosts, no data
    state.py            fleet, models, rollouts and the last changes in one answer
    samples, series     figures of a pool's last hour, from Prometheus or from the registry's own samples
    alerts, traces      data of Prometheus and the trace store, by fixed queries
    tenants, drills     use against limits, and reports of drills
    sources, routes     the data sources; if one is unavailable, its part shows the error and the rest works

Costs, rollouts and the audit come from the registry's other routes.
"""
