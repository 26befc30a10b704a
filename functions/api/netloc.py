"""Host and port as in URLs and `host` headers: an IPv6 address is in brackets (RFC 3986, 3.2.2)."""

HOST = r"[A-Za-z0-9._-]{1,128}|[0-9a-f]{0,4}:[0-9a-f:.]{0,37}:[0-9a-f.]{0,15}"  # a name or an address; without a port


def netloc(host: str, port: int) -> str:
    """Return host and port as in a URL: `10.0.0.7:8000`, `[fd00::7]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
