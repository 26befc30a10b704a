"""The kinds as schemas, made from the same models that the loader judges with.

`editor` is one JSON Schema for editors; `crd` are CustomResourceDefinitions for Kubernetes, `column` what `kubectl get`
shows of each; `tidy` takes pydantic's habits out of both.
"""
