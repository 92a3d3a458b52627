"""Python's kernel: IPython's, which also tells the data of charts and of data frames."""

import json
import os
from typing import Any

from ipykernel.kernelapp import IPKernelApp

from .results import CHART, DATA

# Of a data frame that is told as data; beyond it, only as text and HTML.
CELLS_MAX = 100_000


def _chart(figure: Any) -> dict[str, Any]:
    from e2b_charts import chart_figure_to_dict

    try:
        # As JSON and back: what JSON has no word for fails here, not on its way.
        chart = json.loads(json.dumps(chart_figure_to_dict(figure)))
    except Exception:
        # A picture is all that there is to it.
        return {}
    return {CHART: chart} if chart else {}


def _data(frame: Any) -> dict[str, Any]:
    if frame.size > CELLS_MAX:
        return {}
    try:
        columns = json.loads(frame.to_json(orient="split", date_format="iso"))
    except (ValueError, OverflowError, TypeError):
        return {}
    names = [str(name) for name in columns["columns"]]
    return {DATA: {name: [row[at] for row in columns["data"]] for at, name in enumerate(names)}}


def set_variables(text: str) -> None:
    """Sets environment variables, and removes those without a value."""
    for name, value in json.loads(text).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def main() -> None:
    app = IPKernelApp.instance()
    app.initialize()
    shell = app.shell
    shell.set_variables = set_variables
    formatter = shell.display_formatter.mimebundle_formatter
    formatter.for_type_by_name("matplotlib.figure", "Figure", _chart)
    formatter.for_type_by_name("pandas.core.frame", "DataFrame", _data)
    formatter.for_type_by_name("pandas", "DataFrame", _data)
    shell.run_line_magic("matplotlib", "inline")
    app.start()


if __name__ == "__main__":
    main()
