"""What kernels say, as the clients' SDKs read it: one JSON document a line.

https://jupyter-client.readthedocs.io/en/stable/messaging.html
"""

import time
from typing import Any, Optional

CHART = "application/vnd.pando.chart+json"
DATA = "application/vnd.pando.data+json"

_KEYS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    DATA: "data",
    CHART: "chart",
}

KEEPALIVE = {"type": "keepalive"}
END = {"type": "end_of_execution"}


def of_message(message: dict[str, Any]) -> Optional[dict[str, Any]]:
    """None: it is nothing that clients are told."""
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        return {"type": content["name"], "text": content["text"], "timestamp": time.time_ns()}
    if kind == "execute_result":
        return _result(content["data"], is_main=True)
    if kind in ("display_data", "update_display_data"):
        return _result(content["data"], is_main=False)
    if kind == "execute_input":
        return {"type": "number_of_executions", "execution_count": content["execution_count"]}
    if kind == "error":
        return error(content["ename"], content["evalue"], "\n".join(content["traceback"]))
    return None


def error(name: str, value: str, traceback: str = "") -> dict[str, Any]:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _result(data: dict[str, Any], is_main: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"type": "result", "is_main_result": is_main}
    extra = {}
    for kind, value in data.items():
        key = _KEYS.get(kind)
        if key is None:
            extra[kind] = value
        else:
            result[key] = value
    text = result.get("text")
    # The value of a string, not how Python writes it: SDKs give it as `text`.
    if text and len(text) > 1 and text[0] == text[-1] == "'":
        result["text"] = text[1:-1]
    if extra:
        result["extra"] = extra
    return result
