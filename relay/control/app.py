"""The HTTP application of the control API: `GET /status` and `GET /healthz`.

Owner: the supervisor. It only reads; what it shows comes from two functions that are passed in.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Final

import orjson
from aiohttp import web

SHUTDOWN_S: Final = 0.5
"""How long open requests are waited for at exit."""

Status = Callable[[], dict[str, Any]]
Health = Callable[[], str]
"""Returns why the relay should get no queries, an empty string where it may."""


def make_app(status: Status, health: Health) -> web.Application:
    """Return the application."""

    async def get_status(_: web.Request) -> web.Response:
        return _json(status())

    async def get_health(_: web.Request) -> web.Response:
        reason = health()
        if reason:
            return _json({"status": "unavailable", "reason": reason}, status=503)
        return _json({"status": "ok"})

    app = web.Application()
    app.router.add_get("/status", get_status)
    app.router.add_get("/healthz", get_health)
    return app


async def serve_app(app: web.Application, sock: socket.socket) -> web.AppRunner:
    """Serve `app` on a listening socket until `cleanup` of what is returned."""
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    return runner


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.Response(
        body=orjson.dumps(content) + b"\n",
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
