"""Routers compared: the same requests at the same times, to the same engines, once through each.

    python -m loadtests.routing replay --trace mooncake              a gateway and 8 simulated engines, in real time
    python -m loadtests.routing replay --trace lora                  200 adapters by Zipf's law, in sessions
    python -m loadtests.routing virtual                              the same engines in virtual time: seconds, exact
    python -m loadtests.routing decide                               what one decision costs

Traces lie below SHOAL_TRACES_DIR (`trace` says which). The routers are shoal's own and those of
`studies.routers`.
"""
