"""`shoal drill`: failure modes played on a running local fleet.

    declared   what a drill is: its fault, load, effect, alert and bounds. `catalogue` lists them all
    timeline   what was seen while one was played;  `judging` says what that means.  Both pure
    stage      the fleet as a drill may touch it, each change with its undoing in the `journal` first
    load       requests as clients send them, each checked;  `watch` asks gateway and Prometheus
    runner     plays one drill;  `report` and `picture` show it;  `command` is the command line

Law: a fault is written down with how it is taken back before it is injected, so that an end of any kind takes it back:
by itself, by Ctrl-C, by an error, and after a SIGKILL by the next `shoal drill`.
"""
