"""An extension of griffe: lines `name: description` of a docstring are a list on the page of the Python API."""

import re
from typing import Any

import griffe

LINE = re.compile(r"^(\w+(?:, \w+)*): (?=\S)", re.MULTILINE)


class Parameters(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and isinstance(obj, griffe.Function | griffe.Class):
            first, _, rest = obj.docstring.value.partition("\n")
            obj.docstring.value = f"{first}\n" + LINE.sub(r"\n- **\1**: ", rest)
