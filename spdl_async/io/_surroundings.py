"""What the surroundings say about a server: its proxy and its password, looked up once for each.

aiohttp's ``trust_env=True`` does the same, but reads the files again for every request, in a thread.
"""

from __future__ import annotations

import base64
import logging
import netrc
import os
import urllib.request
from pathlib import Path
from typing import Any

_LOGGER = logging.getLogger("spdl_async")


class Surroundings:
    """Proxies of ``HTTP_PROXY``, ``HTTPS_PROXY`` and ``NO_PROXY``; passwords of ``~/.netrc``."""

    def __init__(self) -> None:
        self._proxies = urllib.request.getproxies()
        self._passwords = _read_netrc()

    def options_for(self, scheme: str, host: str) -> dict[str, Any]:
        """Return aiohttp's options of a request to a server: proxy, proxy_headers, headers."""
        from yarl import URL

        options: dict[str, Any] = {}
        headers: dict[str, str] = {}
        proxy = self._proxies.get(scheme)
        if proxy and not urllib.request.proxy_bypass(host):
            url = URL(proxy if "://" in proxy else f"http://{proxy}")
            options["proxy"] = url.with_user(None)
            if url.user is not None:
                known = {"Proxy-Authorization": _basic(url.user, url.password or "")}
                if scheme == "https":  # only what opens the tunnel is for the proxy
                    options["proxy_headers"] = known
                else:
                    headers |= known
        entry = self._passwords.authenticators(host) if self._passwords is not None else None
        if entry is not None:
            login, account, password = entry
            headers["Authorization"] = _basic(login or account or "", password or "")
        return {**options, "headers": headers}


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _read_netrc() -> netrc.netrc | None:
    name = os.environ.get("NETRC") or os.path.join("~", "_netrc" if os.name == "nt" else ".netrc")
    try:
        return netrc.netrc(Path(name).expanduser())
    except FileNotFoundError:
        return None
    except (OSError, RuntimeError, netrc.NetrcParseError) as error:
        _LOGGER.warning("fetch goes on without the passwords of %s: %s", name, error)
        return None
