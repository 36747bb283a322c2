"""The command `serve`: a run over HTTP."""

import ipaddress
from importlib.util import find_spec
from typing import Annotated

import typer

from safeset.cli.options import (
    Device,
    Epsilon,
    GuaranteeText,
    ModelPath,
    NetworkName,
    check_alone,
    own_network,
    radius,
)
from safeset.errors import SafesetError, counted, expected
from safeset.runs.library import find_run
from safeset.terminal import console

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
LIBRARIES = ("fastapi", "uvicorn", "python_multipart", "prometheus_client")


def serve(
    run: ModelPath,
    host: Annotated[
        str, typer.Option(help="Address to listen at. Other machines reach only other ones.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    name: Annotated[str, typer.Option(help="Of the model, in addresses. Default: that of its directory.")] = "",
    proof: Annotated[bool, typer.Option("--proof", help="Answers carry a proof, for `safeset check`.")] = False,
    token: Annotated[
        str | None, typer.Option(envvar="SAFESET_TOKEN", help="That clients must show (better by $SAFESET_TOKEN).")
    ] = None,
    epsilon: Epsilon = None,
    guarantee: GuaranteeText = None,
    most_bytes: Annotated[int, typer.Option(min=1, help="Of the body of a request.")] = 32 * 2**20,
    most_pixels: Annotated[int, typer.Option(min=1, help="Of an image.")] = 50_000_000,
    most_points: Annotated[int, typer.Option(min=1, help="In a request.")] = 1024,
    most_waiting: Annotated[int, typer.Option(min=1, help="Points that may wait; then the answer is 429.")] = 4096,
    page: Annotated[bool, typer.Option(help="A page for people at /.")] = True,
    samples: Annotated[bool, typer.Option(help="The page shows test points of the run's data.")] = True,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Serve a run over HTTP: a page for people, POST /certify, and the Open Inference Protocol for programs."""
    check_alone()
    check_server()
    from safeset.runs.library import is_onnx
    from safeset.runs.opened import open_model
    from safeset.serving.app import create_app
    from safeset.serving.guard import GONE, Limits, check_token
    from safeset.serving.server import bind
    from safeset.serving.server import run as run_server
    from safeset.serving.service import Service

    check_token(token)
    path, given = find_run(run), radius(epsilon)
    if not is_onnx(path) and (given, guarantee) != (None, None):
        got = f"them for {path}, which has its own"
        raise expected("--epsilon and --guarantee for an .onnx file alone", got, "Clients may ask for others.")
    with bind(host, port) as listening:
        with console.bar("proving the network's bounds"):
            model = open_model(
                path, network=own_network(network), epsilon=given, guarantee=guarantee, device=device, proof=proof
            )
            service = Service(model, name=name, proof=proof, most_waiting=most_waiting, most_points=most_points)
        app = create_app(
            service,
            limits=Limits(bytes=most_bytes, together=8 * most_bytes, pixels=most_pixels),
            token=token,
            hosts=_names_of(host),
            page=page,
            samples=samples,
        )
        shown, number = f"[{host}]" if ":" in host else host, listening.getsockname()[1]
        if token is None and not _is_loopback(host):
            console.err.print(
                "Note: whoever reaches this address may ask. To keep others out: --token.", style="yellow"
            )
        run_server(
            app,
            listening,
            lambda: console.print_line(f"{service.name} is served at http://{shown}:{number}/ (Ctrl-C stops it)."),
        )
    ended = app.state.metrics.ended()
    answered, left = sum(count for status, count in ended.items() if status < 400), ended.get(GONE, 0)
    refused = sum(ended.values()) - answered - left
    of = counted(sum(ended.values()), "request")
    console.err.print(f"Stopped. Of {of} {answered:,} answered, {refused:,} refused, {left:,} left by their clients.")


def check_server() -> None:
    """Raise an error where nothing can be served.

    Raises:
        SafesetError: if a library is missing, with the remedy.
    """
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        remedy = "pip install 'safeset[serve]' brings what serving needs."
        raise SafesetError(f"Expected {', '.join(LIBRARIES)}, but got no {', '.join(missing)}. {remedy}")


def _names_of(host: str) -> frozenset[str] | None:
    """The names under which an address may be asked for: of one that only this machine reaches, its own.

    >>> sorted(_names_of("127.0.0.2") - LOOPBACK), _names_of("0.0.0.0")
    (['127.0.0.2'], None)
    """
    return LOOPBACK | {host.lower()} if _is_loopback(host) else None


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    >>> _is_loopback("localhost"), _is_loopback("127.0.0.2"), _is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
