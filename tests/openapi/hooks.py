"""Keeps what a run creates from piling up: only the newest stay, for the requests that follow."""

import collections
import json
import os
import random
import urllib.error
import urllib.request

import schemathesis

KEPT = 4
# What creates something: its path, and the field of its id.
CREATES = {
    "createSandbox": ("sandboxes", "sandboxID"),
    "createSandboxV1": ("sandboxes", "sandboxID"),
    "forkSandbox": ("sandboxes", "sandboxID"),
    "createVolume": ("volumes", "volumeID"),
    "forkVolume": ("volumes", "volumeID"),
    "createSecret": ("secrets", "secretID"),
    "createSnapshot": ("templates", "snapshotID"),
}
# They may end what all other requests need, so they get another one.
ENDS = {"killSandbox": "sandboxes", "setSandboxTimeout": "sandboxes", "deleteVolume": "volumes"}
NEEDED = {os.environ.get("FUZZ_SANDBOX"), os.environ.get("FUZZ_VOLUME")}
created: collections.defaultdict[str, collections.deque[str]] = collections.defaultdict(collections.deque)


@schemathesis.hook
def before_call(context, case, **kwargs) -> None:
    path = ENDS.get(operation_of(case))
    if path and case.path_parameters.get("id") in NEEDED:
        case.path_parameters["id"] = random.choice([*created[path], "s000000000000"])


@schemathesis.hook
def after_call(context, case, response) -> None:
    path, field = CREATES.get(operation_of(case), ("", ""))
    if path and response.status_code == 201:
        made = response.json()
        for one in [row.get("sandbox") or {} for row in made] if isinstance(made, list) else [made]:
            if field in one:
                created[path].append(one[field])
    for path, ids in created.items():
        while len(ids) > KEPT:
            remove(f"{path}/{ids.popleft()}")


def operation_of(case) -> str:
    return case.operation.definition.raw.get("operationId")


def remove(path: str) -> None:
    headers = {"X-API-KEY": os.environ["FUZZ_KEY"]}
    request = urllib.request.Request(f"{os.environ['FUZZ_URL']}/{path}", method="DELETE", headers=headers)
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        # Gone already, or still in use.
        if error.code not in (404, 409):
            raise RuntimeError(json.load(error)) from error
