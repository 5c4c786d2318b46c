"""What an application does with the official Anthropic SDK, one function for each scenario."""

from anthropic import Anthropic, AnthropicError

from scenario import GATEWAY, KEY, PROMPT, failure, run

client = Anthropic(base_url=GATEWAY, api_key=KEY)

MODEL = "claude-haiku-4-5"
MESSAGES = [{"role": "user", "content": PROMPT}]
WEATHER = {
    "name": "weather",
    "description": "The weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
FORCED = {"type": "tool", "name": "weather"}


def asked(sim=None, model=MODEL, max_tokens=16, **more):
    headers = {"x-sim": sim} if sim else None
    return dict(model=model, messages=MESSAGES, max_tokens=max_tokens, extra_headers=headers, **more)


def create(sim=None, **more):
    return client.messages.create(**asked(sim, **more))


def whole(message):
    return {
        "id": message.id,
        "request_id": getattr(message, "_request_id", None),
        "object": message.type,
        "model": message.model,
        "finish": message.stop_reason,
        "text": "".join(block.text for block in message.content if block.type == "text"),
        "tools": [
            {"name": block.name, "arguments": block.input} for block in message.content if block.type == "tool_use"
        ],
        "usage": {"input": message.usage.input_tokens, "output": message.usage.output_tokens},
    }


def streamed(**more):
    """The same report, put together by the SDK from a stream; and the kinds of events as they first came."""
    with client.messages.stream(**asked(**more)) as stream:
        events = list(dict.fromkeys(event.type for event in stream))
        report = whole(stream.get_final_message())
    report["events"] = events
    return report


def count_tokens():
    count = client.messages.count_tokens(model=MODEL, messages=MESSAGES)
    return {"input": count.input_tokens}


def aborted():
    """Reads a few events of a long stream and closes it."""
    stream = create("gap=100ms", max_tokens=1000, stream=True)
    read = [next(stream) for _ in range(5)]
    stream.close()
    return {"chunks": len(read)}


def refused(**request):
    return failure(lambda: create(**request), AnthropicError)


def spent():
    """Spends what the key has, then asks for more."""
    first = whole(create("tokens=150", max_tokens=150))
    return {"first": first, "then": refused(max_tokens=150)}


def hasty():
    """Asks again at once, and again: patience is left to the SDK."""
    return {"finishes": [create().stop_reason for _ in range(3)]}


run(
    {
        "plain": lambda: whole(create()),
        "stream": streamed,
        "tools": lambda: whole(create(tools=[WEATHER], tool_choice=FORCED)),
        "tools_stream": lambda: streamed(tools=[WEATHER], tool_choice=FORCED),
        "count_tokens": count_tokens,
        "models": lambda: {"ids": [model.id for model in client.models.list()]},
        "aborted": aborted,
        "refused": refused,
        # Above some 21,000 the SDK itself insists on a stream and sends nothing.
        "too_large": lambda: refused(max_tokens=20_000),
        "unknown_model": lambda: refused(model="no-such-model"),
        "spent": spent,
        "hasty": hasty,
    }
)
