"""SHA-256 checksums as Amazon computes and reports them, for a server that does neither."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit


class Checksums:
    def __init__(self) -> None:
        self._sums: dict[str, str] = {}
        """Of objects by path, of parts by upload and number."""

    def is_wrong(self, method: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether a request carries a checksum that is not its body's."""
        given = headers.get("x-amz-checksum-sha256")
        return bool(method == "PUT" and given and given != sha256(body))

    def reported(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> dict[str, str]:
        """Keep the checksum of what was stored; returns the header that reports one."""
        url, sums = urlsplit(path), self._sums
        query = parse_qs(url.query)
        if "uploadId" in query:
            upload = query["uploadId"][0]
            if method == "PUT":
                sums[f"{upload} {int(query['partNumber'][0]):05}"] = sha256(body)
            elif method == "POST":
                parts = [base64.b64decode(sums[name]) for name in sorted(sums) if name.startswith(f"{upload} ")]
                sums[url.path] = f"{sha256(b''.join(parts))}-{len(parts)}"
        elif method == "PUT" and (source := headers.get("x-amz-copy-source")):
            sums[url.path] = sums.get("/" + source.lstrip("/"), "")
        elif method == "PUT":
            sums[url.path] = sha256(body)
        is_asked = method == "HEAD" and headers.get("x-amz-checksum-mode") and sums.get(url.path)
        return {"x-amz-checksum-sha256": sums[url.path]} if is_asked else {}


def sha256(data: bytes) -> str:
    """In base64, as in headers."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()
