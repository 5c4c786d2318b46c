"""An application that uses an official SDK: several threads, each of which makes one call after another.

`sdk.py SDK KEY FIRST SEED THREADS`, where FIRST begins the numbers of its calls and of its HTTP requests. A line on
standard input names the nodes as `[[1, "10.77.2.1:8080"], …]`, and its end is the end. A line on standard output tells
of each HTTP request that leaves the SDK (`sent`), of the head of its answer (`head`) and of the end of a call (`end`),
stamped with the clock of the harness.

The SDK is as it is shipped, retries included, but for a time-out that suits the faults. It is given a client of its own
kind with two hooks: one sends each request to any of the nodes, as a balancer before them would, numbers it for the
provider, and tells of it; the other tells of answers.
"""

import importlib
import itertools
import json
import os
import random
import sys
import threading
import time

NAME, KEY, FIRST, SEED, THREADS = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])

# Seconds that the SDK waits for anything: longer than a gateway asks for who may decide, shorter than the longest pause
# of a node.
PATIENCE = 3.0
# More than a burst of tokens: it can never fit.
TOO_MANY = 10_000
CEILING = 16

SDK = importlib.import_module(NAME)

numbers = itertools.count(FIRST)
here = threading.local()
out = threading.Lock()
over = threading.Event()
nodes = []


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


def tell(**line):
    text = json.dumps(line) + "\n"
    with out:
        sys.stdout.write(text)
        sys.stdout.flush()


def on_request(request):
    number, address = here.chance.choice(nodes)
    host, port = address.split(":")
    request.url = request.url.copy_with(host=host, port=int(port))
    request.headers["host"] = address
    op = next(numbers)
    request.headers["x-script"] = f"op={op},{here.script}"
    here.op = op
    retry = request.headers.get("x-stainless-retry-count", "0")
    tell(k="sent", op=op, call=here.call, request=here.request, node=number, retry=int(retry), at=now())


def on_response(response):
    at, headers = now(), response.headers
    tell(
        k="head",
        op=here.op,
        at=at,
        status=response.status_code,
        error=headers.get("x-tollgate-error", ""),
        should_retry=headers.get("x-should-retry"),
        retry_after=headers.get("retry-after"),
        retry_after_ms=headers.get("retry-after-ms"),
    )


hooks = {"request": [on_request], "response": [on_response]}
client = getattr(SDK, {"openai": "OpenAI", "anthropic": "Anthropic"}[NAME])(
    # Each request gets its own node.
    base_url="http://nodes.invalid" + ("/v1" if NAME == "openai" else ""),
    api_key=KEY,
    timeout=PATIENCE,
    http_client=SDK.DefaultHttpxClient(event_hooks=hooks, trust_env=False),
)


def create(ceiling, stream):
    messages = [{"role": "user", "content": "Hello."}]
    headers = {"idempotency-key": f"r-{here.request}"}
    if NAME == "openai":
        more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
        return client.chat.completions.create(
            model="gpt-5-mini", messages=messages, max_completion_tokens=ceiling, extra_headers=headers, **more
        )
    more = {"stream": True} if stream else {}
    return client.messages.create(
        model="claude-haiku-4-5", messages=messages, max_tokens=ceiling, extra_headers=headers, **more
    )


def call(request, script, ceiling=CEILING, stream=False, leave=None):
    """Makes a call and tells how it ended: by the class of what it raised. A stream is closed after `leave` pieces."""
    here.call, here.request, here.script, here.op = next(numbers), request, script, None
    how, complete, why = "answer", False, ""
    try:
        answer = create(ceiling, stream)
        if stream:
            read = sum(1 for _ in itertools.islice(answer, leave))
            if leave is not None and read == leave:
                answer.close()
                how = "left"
        complete = how == "answer"
    except Exception as error:
        how, why = type(error).__name__, str(error)[:200]
    tell(k="end", call=here.call, op=here.op, at=now(), how=how, why=why, complete=complete)
    return how


def some_call(chance):
    """One of the ways in which applications call, and what they do when it fails."""
    request = next(numbers)
    if chance.randrange(48) == 0:
        call(request, "latency=0,tokens=4,usage=1", ceiling=TOO_MANY)
        return
    stream = chance.randrange(3) == 0
    leave = chance.randrange(2, 4) if stream and chance.randrange(5) == 0 else None
    if stream:
        script = f"latency={chance.randrange(20)},chunks=6,gap={chance.randrange(5, 25)},tokens=6,usage=1"
    else:
        script = f"latency={chance.randrange(40)},tokens={chance.randrange(1, CEILING + 1)},usage=1"
    how = call(request, script, stream=stream, leave=leave)
    if how not in ("answer", "left", "RateLimitError") or chance.randrange(24) == 0:
        # Who does not know what became of a request makes it again, under the same key; the cautious also when they do.
        time.sleep(chance.uniform(0.05, 0.5))
        call(request, script, stream=stream)


def work(number):
    here.chance = chance = random.Random(SEED * 1000 + number)
    try:
        while not over.is_set():
            if nodes:
                some_call(chance)
            time.sleep(chance.uniform(0.005, 0.04))
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        # An application that goes on with fewer threads would be less than what was ordered.
        os._exit(1)


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for line in sys.stdin:
    nodes = json.loads(line)
over.set()
for thread in threads:
    thread.join()
