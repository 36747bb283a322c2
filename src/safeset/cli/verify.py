"""The commands `verify` and `supports`: properties of networks in VNN-LIB, by the command line of that standard."""

from pathlib import Path
from typing import Annotated

import typer

from safeset.cli.options import check_alone, check_target
from safeset.errors import expected, nearest
from safeset.terminal import console

COVERED = (
    "Decided in exact arithmetic, of the numbers in the file; those that it computes from constants are rounded to "
    "float64 once. Not covered: the rounding of a runtime."
)
Files = Annotated[
    list[Path], typer.Argument(metavar="[NETWORK] PROPERTY", help="A network (.onnx, .nnet), and a VNN-LIB file.")
]


def verify(
    files: Files,
    network: Annotated[
        list[str] | None, typer.Option(metavar="NAME=FILE", help="The network that VNN-LIB 2.0 calls NAME.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Then the answer is unknown.")] = 60.0,
    real: Annotated[bool, typer.Option("--real", help="Read float32 and float64 as real numbers.")] = False,
    witness: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write what sat has found.")] = None,
) -> None:
    """Decide a property: unsat by a proof, sat by an input that is confirmed exactly, else unknown."""
    check_alone()
    path, model, name = _given(files, network or [])
    if witness is not None:
        check_target(witness, "txt", run=witness.parent, inputs=[path, model])
    from safeset.system.files import write_whole
    from safeset.verification.networks import read_network
    from safeset.verification.verify import verify as decide
    from safeset.verification.vnnlib import read_vnnlib
    from safeset.verification.witness import witness_text

    query = read_vnnlib(path)
    if name is not None and name != query.network:
        declared = query.network or "none, as VNN-LIB 1.0 does: give the network before the property"
        raise expected(f"--network to name a network that {path} declares", f"{name}; it declares {declared}")
    program = read_network(model)
    with console.bar("looking for a counterexample and for a proof"):
        verdict = decide(program, query, seconds=timeout, as_real=real)
    is_late = verdict.timed_out and query.version != "1.0"
    console.print_line("timed-out" if is_late else verdict.answer)
    if verdict.witness is not None:
        text = witness_text(query, verdict.witness)
        console.print_line(text)
        if witness is not None:
            write_whole(witness, f"{verdict.answer}\n{text}\n")
    console.err.print(verdict.reason)
    if verdict.answer != "unknown" and model.suffix.lower() == ".onnx":
        console.err.print(COVERED, style="dim")


def _given(files: list[Path], networks: list[str]) -> tuple[Path, Path, str | None]:
    """The property, the network, and the name that 2.0 has for it, from either form of the command."""
    if len(files) == 2 and not networks:
        if files[0].suffix.lower() == ".vnnlib" and files[1].suffix.lower() in (".onnx", ".nnet"):
            raise expected("the network before the property", "them in the other order", "Exchange the two files.")
        return files[1], files[0], None
    if len(files) != 1 or len(networks) != 1:
        got = f"{len(files)} files and {len(networks)} of --network"
        raise expected("a network and a property, or a property and one --network NAME=FILE", got)
    name, sign, path = networks[0].partition("=")
    if not sign or not name or not path:
        raise expected("--network NAME=FILE", repr(networks[0][:80]))
    return files[0], Path(path), name


def supports(
    asked: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CAPABILITY]", help="Such as --vnnlib-versions; all of them if none is given."),
    ] = None,
) -> None:
    """Which queries `verify` can decide, as the VNN-LIB standard lets other programs ask for it."""
    from safeset.verification.capabilities import capabilities

    found = {f"--{name}": lines for name, lines in capabilities().items()}
    for name in asked or []:
        if name not in found:
            remedy = nearest(name, found) or f"There are {', '.join(found)}."
            raise expected("a capability that the standard names", repr(name[:80]), remedy)
        for line in found[name]:
            console.print_line(line)
    if not asked:
        for name, lines in found.items():
            console.print_line(f"{name.removeprefix('--')}: {' '.join(lines)}".rstrip())
