"""What a configuration would do: two planned fleets from two sets of objects, the same traffic, one comparison.

profiles        which engine an InferenceService is, from its accelerators, its model and its arguments
planned_fleet   objects -> what the simulator is told
unsimulated     what a change touches that no simulated figure can show
traffic         requests for both sides: a trace at its pace, or traffic that nobody recorded
entry           those of them that reach an admission queue at all, and where rules place them
measure         a run -> figures by name
comparison      figures of two sides, paired by seed -> better, worse or the same
experiment      all of it, with progress
"""
