"""`shoal plan`: two configurations as planned fleets, the same traffic for both, one comparison.

profiles        the engine of an InferenceService, from its accelerators, its model and its arguments
planned_fleet   objects -> input of the simulator
unsimulated     parts of a change that no simulated figure can show
traffic         requests for both sides: a trace at its pace, or made-up traffic
entry           the requests that reach an admission queue, and the pools where rules place them
measure         a run -> figures by name
comparison      figures of two sides, paired by seed -> better, worse or the same
experiment      all of it, with progress
"""
