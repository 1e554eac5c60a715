# SPDX-License-Identifier: Apache-2.0
"""An echo on our HTTP stack: it decodes the scheduler's arguments, and returns the names without a decision."""

import argparse
import datetime as dt
from pathlib import Path

import uvloop
from fastapi import FastAPI, Request, Response

from app.api.operations_routes import BareApp
from app.api.wire import HostPriority, decode_extender_args, encode
from app.placement.ranking import tie_break
from app.server.listener import make_server
from app.server.listeners import bind
from app.tls.serving_certificates import Certificates, issue_if_needed


async def echo_filter(request: Request) -> Response:
    """Accept every node."""
    names = decode_extender_args(await request.body()).NodeNames
    return Response(encode({"NodeNames": names}), media_type="application/json")


async def echo_prioritize(request: Request) -> Response:
    """Score every node 0."""
    names = decode_extender_args(await request.body()).NodeNames or []
    return Response(encode([HostPriority(name, 0) for name in names]), media_type="application/json")


async def echo_packing(request: Request) -> Response:
    """Give the node with the lowest checksum the score 10, so that pods are packed as ours are, without a decision."""
    names = decode_extender_args(await request.body()).NodeNames or []
    best = min(names, key=tie_break)
    scores = [HostPriority(name, 10 if name is best else 0) for name in names]
    return Response(encode(scores), media_type="application/json")


def create_echo_app() -> FastAPI:
    """Build the application."""
    app = BareApp()
    app.add_route("/scheduler/filter", echo_filter, methods=["POST"])
    app.add_route("/scheduler/prioritize", echo_prioritize, methods=["POST"])
    app.add_route("/packing/filter", echo_filter, methods=["POST"])
    app.add_route("/packing/prioritize", echo_packing, methods=["POST"])
    return app


def main() -> None:
    """Serve on a port of loopback until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--certs", type=Path, required=True)
    words = parser.parse_args()
    now = dt.datetime.now(dt.UTC)
    context = Certificates(issue_if_needed(words.certs, now), now).context
    sock = bind("127.0.0.1", words.port, "--port")
    uvloop.run(make_server(create_echo_app(), sock, context).serve())


if __name__ == "__main__":
    main()
