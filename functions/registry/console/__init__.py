"""The console: one page for people who run the fleet, and the routes that only it needed.

    page/, page.py      what a browser gets: no framework, no build step, nothing from elsewhere, no data
    state.py            fleet, models, rollouts and the last changes in one answer
    samples, series     a pool's last hour in figures, from Prometheus or from samples of the registry's own
    alerts, traces      Prometheus and the trace store, asked with questions that are written here
    tenants, drills     use against limits, and reports of drills
    sources, routes     who is asked, and where; what is away is told in its place, and the rest goes on

Costs, rollouts and the audit are the registry's other routes.
"""
