"""Comparison of routers: the same requests at the same times to the same engines, once through each router.

    python -m loadtests.routing replay --trace mooncake              a gateway and 8 simulated engines, in real time
    python -m loadtests.routing replay --trace lora                  200 adapters by Zipf's law, in sessions
    python -m loadtests.routing virtual                              the same engines in virtual time: fast and exact
    python -m loadtests.routing decide                               CPU time of one decision

Traces are files below SHOAL_TRACES_DIR (listed in `trace`). The routers are shoal's own and those of `studies.routers`.
"""
