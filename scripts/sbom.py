"""The software bill of materials of the wheel, in CycloneDX: python scripts/sbom.py writes sbom.cdx.json.

It lists what the wheel contains of others (ECharts, ZRender, d3, a dataset), and the direct dependencies with the
versions that are allowed. The wheel has it in `.dist-info/sboms` (PEP 770).
"""

import hashlib
import json
import re
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "sbom.cdx.json"
ECHARTS = ROOT / "src/filfl/report/html/page/echarts.min.js"
DIGITS = ROOT / "src/filfl/data/digits.npz"


def render() -> str:
    """The content of sbom.cdx.json. It has no time of creation, so the same tree gives the same bytes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = _found(r'^__version__ = "(.*)"', (ROOT / "src/filfl/__init__.py").read_text(encoding="utf-8"))
    itself = {
        "bom-ref": "filfl",
        "type": "library",
        "name": "filfl",
        "version": version,
        "purl": f"pkg:pypi/filfl@{version}",
        "licenses": [{"expression": project["license"]}],
    }
    vendored, required = _vendored(), [_required(text) for text in project["dependencies"]]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"pkg:pypi/filfl@{version}").urn,
        "version": 1,
        "metadata": {"component": itself},
        "components": [*vendored, *required],
        "dependencies": [{"ref": "filfl", "dependsOn": [part["bom-ref"] for part in [*vendored, *required]]}],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _vendored() -> list[dict[str, Any]]:
    """What the wheel contains of others."""
    script = ECHARTS.read_text(encoding="utf-8")
    echarts, zrender = _found(r't\.version="([\d.]+)"', script), _found(r'dependencies={zrender:"([\d.]+)"}', script)
    return [
        _library("echarts", f"pkg:npm/echarts@{echarts}", "Apache-2.0", echarts, ECHARTS),
        _library("zrender", f"pkg:npm/zrender@{zrender}", "BSD-3-Clause", zrender, ECHARTS),
        _library("d3", "pkg:npm/d3", "BSD-3-Clause", None, ECHARTS),
        {
            "bom-ref": "digits",
            "type": "data",
            "name": "Optical Recognition of Handwritten Digits",
            "licenses": [{"license": {"id": "CC-BY-4.0"}}],
            **_file(DIGITS),
            "externalReferences": [{"type": "distribution", "url": "https://doi.org/10.24432/C50P49"}],
        },
    ]


def _library(name: str, purl: str, licence: str, version: str | None, path: Path) -> dict[str, Any]:
    known = {"version": version} if version else {"description": "Parts of it, which ECharts embeds."}
    licences = [{"license": {"id": licence}}]
    return {
        "bom-ref": name,
        "type": "library",
        "name": name,
        **known,
        "purl": purl,
        "licenses": licences,
        **_file(path),
    }


def _file(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    where = {"name": "filfl:file", "value": path.relative_to(ROOT / "src").as_posix()}
    return {"hashes": [{"alg": "SHA-256", "content": digest}], "properties": [where]}


def _required(text: str) -> dict[str, Any]:
    """A direct dependency, which is installed beside the wheel."""
    name = re.split(r"[<>=\[]", text)[0]
    allowed = [{"name": "filfl:requirement", "value": text}]
    return {"bom-ref": name, "type": "library", "name": name, "purl": f"pkg:pypi/{name}", "properties": allowed}


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise SystemExit(f"there is no {pattern} in the sources; change scripts/sbom.py")
    return found[1]


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
