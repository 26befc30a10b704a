"""The names under which the controller is known on a cluster, and those by which people speak to it."""

FIELD_MANAGER = "shoal-controller"
AUTOSCALER_MANAGER = "shoal-autoscaler"  # owns minReplicas of pools with an AutoscalingPolicy

# In the YAML of an InferenceService; read and never sent. PRUNE is heeded on live objects too.
WAVE_ANNOTATION = "shoal.dev/wave"
PRUNE_ANNOTATION = "shoal.dev/prune"
PRUNE_DISABLED = "disabled"

# On the record: the revision whose large prune a person allows.
CONSENT_ANNOTATION = "shoal.dev/allow-prune"
