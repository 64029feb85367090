"""A virtual environment per peer framework, created when it is first needed.

torch is installed first, on its own. The packages after it then do not fetch another build of it.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENVS = HERE / ".venvs"
TORCH = "torch==2.13.0"


class Skip(Exception):
    """The reason why a contender is skipped."""


@dataclass(frozen=True)
class Peer:
    """The tested versions of a peer and of its dependencies."""

    title: str
    requirements: tuple[str, ...]
    torch: bool = True
    alone: tuple[str, ...] = ()
    """Packages that are installed without their dependencies: FedLab needs torchvision for datasets that are not used
    here."""


PEERS = {
    "pfl": Peer("pfl-research 0.6", ("pfl==0.6.0", "numpy==2.4.6")),
    "fedlab": Peer(
        "FedLab 1.3",
        (
            "numpy==2.4.6",
            "pandas==3.1.1",
            "scikit-learn==1.9.1",
            "pillow==13.0.0",
            "pynvml==13.0.1",
            "tqdm==4.70.1",
            "munch==4.0.0",
        ),
        alone=("fedlab==1.3.0",),
    ),
    "fedjax": Peer(
        "FedJAX 0.0.17",
        ("fedjax==0.0.17", "jax==0.10.2", "jaxlib==0.10.2", "dm-haiku==0.0.17", "optax==0.2.8", "numpy==2.4.6"),
        torch=False,
    ),
    "flower": Peer("Flower 1.41", ("flwr[simulation]==1.41.0", "numpy==2.4.6")),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment; raises `Skip` with the reason if it cannot be created."""
    peer, venv = PEERS[name], VENVS / name
    python, ready = venv / "bin/python", venv / ".ready"
    wanted = "\n".join([*([TORCH] if peer.torch else []), *peer.requirements, *peer.alone])
    if ready.exists() and ready.read_text() == wanted:
        return python
    print(f"creating the environment of {peer.title} in {venv}")
    _run(name, sys.executable, "-m", "venv", "--clear", venv)
    constraints = venv / "constraints.txt"
    constraints.write_text(f"{TORCH}\n")
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if peer.torch:
        _run(name, *pip, TORCH)
    if peer.alone:
        _run(name, *pip, "--no-deps", *peer.alone)
    _run(name, *pip, "--constraint", constraints, *peer.requirements)
    ready.write_text(wanted)
    return python


def _run(name: str, *command: object) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.startswith("ERROR")]
        raise Skip(f"{name} cannot be installed: {lines[0] if lines else 'pip failed'}")
