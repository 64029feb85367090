"""Execute the tutorials and store them with their outputs: `python docs/execute_tutorials.py [NAME...]`."""

import re
import sys
import tempfile
from pathlib import Path

import nbclient
import nbformat

TUTORIALS = Path(__file__).with_name("tutorials")


def execute(path: Path, folder: Path) -> nbformat.NotebookNode:
    """A notebook with its outputs, executed in this folder. An error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def store(path: Path) -> None:
    """Execute a notebook and write it without what differs from machine to machine: times, paths and colours."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute(path, Path(folder))
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
            if "outputs" in cell:
                cell.outputs = joined(cell.outputs)
            for output in cell.get("outputs", []):
                for text, holder in (("text", output), ("text/plain", output.get("data", {}))):
                    if text in holder:
                        holder[text] = re.sub(r"\x1b\[[0-9;]*m", "", holder[text].replace(folder, "FOLDER"))
        notebook.metadata.language_info = {"name": "python"}
        nbformat.write(notebook, path)


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs, with lines of the same stream in one output."""
    result: list[nbformat.NotebookNode] = []
    for output in outputs:
        if result and output.output_type == "stream" and result[-1].get("name") == output.name:
            result[-1].text += output.text
        else:
            result.append(output)
    return result


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(path.stem for path in TUTORIALS.glob("*.ipynb")):
        store(TUTORIALS / f"{name}.ipynb")
