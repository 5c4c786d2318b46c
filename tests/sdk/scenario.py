"""How a scenario is run: by name, against the gateway named in the environment, reporting what the application saw.

A scenario uses an official SDK as an application would, defaults and retries included. It judges nothing: it prints one
line of JSON, and the test that started it compares.
"""

import json
import os
import sys
import time

GATEWAY = os.environ["GATEWAY"]  # http://HOST:PORT
KEY = os.environ["GATEWAY_KEY"]
PROMPT = "Name three rivers that cross a border."


def run(scenarios):
    """Runs the scenario that the command line names and prints its report."""
    begun = time.monotonic()
    report = scenarios[sys.argv[1]]()
    report["milliseconds"] = int((time.monotonic() - begun) * 1000)
    print(json.dumps(report))


def failure(call, errors):
    """What the application is told when `call` fails with one of the SDK's `errors`."""
    try:
        call()
    except errors as error:
        return {
            "class": type(error).__name__,
            "ancestors": [ancestor.__name__ for ancestor in type(error).__mro__],
            "message": str(error),
            "status": getattr(error, "status_code", None),
            "code": getattr(error, "code", None),
            "type": getattr(error, "type", None),
            "body": getattr(error, "body", None),
            "request_id": getattr(error, "request_id", None),
        }
    return {"class": None}
