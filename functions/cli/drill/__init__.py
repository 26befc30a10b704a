"""`shoal drill`: inject failure modes into a running local fleet and check alerts and recovery.

    declared   definition of a drill: fault, load, effect, alert, limits;  `drills_*` contain them, `command` lists them
    timeline   observations of one run;  `judging` evaluates them.  Both pure
    stage      changes to the fleet, each with its undo entry in the `journal` first
    load       requests as clients send them, each checked;  `watch` reads gateway and Prometheus
    runner     runs one drill;  `report` and `picture` show it;  `command` is the command line

Rule: the undo entry of a fault is stored before the fault is injected. So every fault is removed: at the normal end,
after Ctrl-C or an error, and after a SIGKILL by the next `shoal drill`.
"""
