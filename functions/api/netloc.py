"""Host and port as URLs and `host` headers have them: an IPv6 address stands in brackets (RFC 3986, 3.2.2)."""


def netloc(host: str, port: int) -> str:
    """`10.0.0.7:8000`, `[fd00::7]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
