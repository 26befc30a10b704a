"""The gateway's OpenAPI document, `GET /openapi.json`: every route, the hot ones included, from what serves them.

`document` puts it together, `requests` derives bodies from the field tables, `replies` has the shapes of answers,
`headers` those of headers.
"""
