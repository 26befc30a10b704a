"""The gateway's OpenAPI document, `GET /openapi.json`: every route, generated from the code that serves it.

`document` assembles it, `requests` derives bodies from the field tables, `replies` has the schemas of answers, and
`headers` those of headers.
"""
