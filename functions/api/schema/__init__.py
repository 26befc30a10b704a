"""Schemas of the kinds, made from the models that the loader validates with.

`editor` has one JSON Schema for editors; `crd` has CustomResourceDefinitions for Kubernetes with the columns of
`kubectl get`. Both remove pydantic's superfluous parts.
"""
