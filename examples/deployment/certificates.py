"""Create a certificate authority and a certificate for the SuperLink that it signs; create a key for a SuperNode.

python certificates.py FOLDER superlink.example.org 192.0.2.7
"""

import argparse
import ipaddress
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-384", "-nodes")
ALWAYS = ("127.0.0.1", "localhost")
"""The ServerApp runs on the machine of the SuperLink and connects to it under these names."""


def make_certificates(folder: Path, hosts: Sequence[str] = ()) -> None:
    """Create ca.crt (public), ca.key (secret), server.pem and server.key (for the SuperLink).

    hosts: the names and addresses under which SuperNodes and users reach the SuperLink.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (folder / "ca.key").exists():
        raise SystemExit(f"{folder} already has a certificate authority: choose another folder")
    names = ",".join(_name(host) for host in dict.fromkeys([*hosts, *ALWAYS]))
    (folder / "server.ext").write_text(
        f"subjectAltName={names}\nbasicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\n"
        "extendedKeyUsage=serverAuth\nsubjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    authority = ("-addext", "keyUsage=critical,keyCertSign,cRLSign", "-days", "3650", "-subj", "/CN=Federation CA")
    _call(folder, "openssl", "req", "-x509", *NEW_KEY, "-keyout", "ca.key", "-out", "ca.crt", *authority)
    _call(folder, "openssl", "req", *NEW_KEY, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=SuperLink")
    signed_by = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "365", "-extfile", "server.ext")
    _call(folder, "openssl", "x509", "-req", "-in", "server.csr", *signed_by, "-out", "server.pem")
    for name in ("ca.key", "server.key"):
        (folder / name).chmod(0o600)


def make_key(path: Path) -> None:
    """Create the private key of a SuperNode, and its public key with the ending .pub in the same folder."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _call(path.parent, "ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", path.name, "-f", path.name)


def missing() -> list[str]:
    """The required programs that are not installed."""
    return [name for name in ("openssl", "ssh-keygen") if shutil.which(name) is None]


def _name(host: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(host)}"
    except ValueError:
        return f"DNS:{host}"


def _call(folder: Path, *command: str) -> None:
    if shutil.which(command[0]) is None:
        raise SystemExit(f"{command[0]} is not installed: install openssl and openssh-client")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed in {folder}:\n{done.stderr.strip()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Create a certificate authority and a certificate for the SuperLink.")
    parser.add_argument("folder", type=Path, help="a new folder for them")
    parser.add_argument("hosts", nargs="+", help="the names and addresses under which the SuperLink is reached")
    arguments = parser.parse_args()
    make_certificates(arguments.folder, arguments.hosts)
    print(f"{arguments.folder}: server.pem and server.key are for the SuperLink, ca.crt is for all nodes and users.")
    print("Keep ca.key offline: anyone who has it can impersonate the SuperLink.")


if __name__ == "__main__":
    main()
