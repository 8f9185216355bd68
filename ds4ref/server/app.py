"""The server as an ASGI application: access control, routes, error documents.

    service = Service(Worker(engine), apis())
    app = create_app(service)

Paths are matched exactly as sent, without percent-decoding, removing a trailing slash, or ignoring case. The
application runs only on the connections of ``protocol``, which pass a ``Link`` as ``scope["state"]["link"]``.
"""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from . import refusals
from .api import Api, Refused
from .apis.chat import Chat
from .apis.completions import Completions
from .apis.messages import Messages
from .apis.responses import Responses
from .auth import CORS, OPEN, PAGES
from .endpoint import Generate, respond, whole
from .exchange import LEFT, Exchange
from .limits import Disconnected
from .plain import Plain
from .service import Service

log = logging.getLogger("ds4-server")


def apis() -> list[Api]:
    """Return one instance of each API."""
    return [Chat(), Completions(), Messages(), Responses()]


UNKNOWN = "unknown endpoint"


def create_app(service: Service) -> Front:
    """Build the ASGI application that serves ``service``."""
    plain = Plain(service)
    routes = [
        Route("/", plain.chat),
        Route("/health", plain.health),
        Route("/metrics", plain.metrics),
        Route("/v1/models", plain.models),
        Route("/v1/models/{id:path}", plain.model),
        Route("/tokenizer_info", plain.tokenizer_info),
        Route("/tokenize", plain.tokenize, methods=["POST"]),
        Route("/detokenize", plain.detokenize, methods=["POST"]),
        Route("/v1/messages/count_tokens", plain.count_tokens, methods=["POST"]),
        *(Route(api.path, Generate(api, service), methods=["POST"]) for api in service.apis),
    ]
    return Front(Router(routes, redirect_slashes=False), service)


class Front:
    """ASGI middleware around every request: gives it an id, checks access, turns exceptions into error responses,
    counts and logs."""

    def __init__(self, app: Any, service: Service):
        self.app, self.service = app, service

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        service, access = self.service, self.service.access
        scope["path"] = path = scope["raw_path"].decode("latin-1")
        scope["app"] = self  # with it, routes raise HTTPException instead of answering errors themselves
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        name = service.name_at(path)
        x = Exchange(name, headers, (scope["client"] or ("", 0))[0], service.watchers)
        scope["state"]["exchange"], scope["state"]["headers"] = x, headers
        extra = {"x-request-id": x.id, "request-id": x.id, **(CORS if access.cors else {})}
        if service.draining:
            extra["connection"] = "close"
        more = [(key.encode(), value.encode("latin-1")) for key, value in extra.items()]
        status = 0

        async def answer(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            try:
                refused = self._refused(scope["method"], path, headers)
                if refused is None and scope["method"] == "OPTIONS":
                    for message in whole(204, "", b"", {}):
                        await answer(message)
                elif refused is None:
                    await self.app(scope, receive, answer)
            except Refused as error:
                refused = error
            except HTTPException as error:
                refused = Refused(404, UNKNOWN, headers=error.headers)
            except Disconnected:
                pass
            except Exception as error:
                log.error("%s %s", scope["method"], path, exc_info=error)
                refused = refusals.internal()
            if refused is not None and not status:
                x.error = refused.message
                await respond(answer, refused, name)
        finally:
            x.end(status or LEFT)
            service.metrics.answered(name or "plain", x.status)
            if x.turn is None and x.status >= 400:
                fields = {"request": x.id, "status": x.status, "client": x.client}
                log.info("%s %s %s %d %s", x.id, scope["method"], path, x.status, x.error, extra={"fields": fields})

    def _refused(self, method: str, path: str, headers: dict[str, str]) -> Refused | None:
        access = self.service.access
        if not access.knows_host(headers):
            log.warning("refused Host %r (--allow-host adds a name)", headers["host"])
            return Refused(403, "this server does not answer to that Host")
        if path not in PAGES and not access.knows_site(headers):
            return Refused(403, "pages of other sites may not ask (--cors allows it)")
        if method != "OPTIONS" and path not in OPEN and not access.has_key(headers):
            return Refused(401, "a valid API key is needed", headers={"www-authenticate": "Bearer"})
        return None
