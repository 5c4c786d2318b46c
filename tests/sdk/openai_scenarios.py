"""What an application does with the official OpenAI SDK, one function for each scenario."""

from openai import AzureOpenAI, OpenAI, OpenAIError

from scenario import GATEWAY, KEY, PROMPT, failure, run

client = OpenAI(base_url=f"{GATEWAY}/v1", api_key=KEY)

MODEL = "gpt-5"
MESSAGES = [{"role": "user", "content": PROMPT}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
FORCED = {"type": "function", "function": {"name": "weather"}}


def create(sim=None, model=MODEL, max_tokens=16, **more):
    headers = {"x-sim": sim} if sim else None
    return client.chat.completions.create(
        model=model, messages=MESSAGES, max_completion_tokens=max_tokens, extra_headers=headers, **more
    )


def usage_of(answer):
    usage = answer.usage
    return usage and {"input": usage.prompt_tokens, "output": usage.completion_tokens, "total": usage.total_tokens}


def whole(answer):
    return {
        "id": answer.id,
        "request_id": getattr(answer, "_request_id", None),
        "object": answer.object,
        "model": answer.model,
        "choices": [
            {
                "index": choice.index,
                "text": choice.message.content,
                "finish": choice.finish_reason,
                "tools": [
                    {"name": call.function.name, "arguments": call.function.arguments}
                    for call in choice.message.tool_calls or []
                ],
            }
            for choice in answer.choices
        ],
        "usage": usage_of(answer),
    }


def streamed(chunks):
    """The same report, put together from a stream; and how usage came, if it came."""
    choices = {}
    usage, usage_chunks, chunks_without_choices, seen = None, 0, 0, 0
    for chunk in chunks:
        seen += 1
        if chunk.usage is not None:
            usage, usage_chunks = usage_of(chunk), usage_chunks + 1
        chunks_without_choices += not chunk.choices
        for part in chunk.choices:
            choice = choices.setdefault(part.index, {"index": part.index, "text": "", "finish": None, "tools": []})
            choice["text"] += part.delta.content or ""
            choice["finish"] = part.finish_reason or choice["finish"]
            for call in part.delta.tool_calls or []:
                if call.index == len(choice["tools"]):
                    choice["tools"].append({"name": call.function.name, "arguments": ""})
                choice["tools"][call.index]["arguments"] += call.function.arguments or ""
    return {
        "chunks": seen,
        "choices": [choices[index] for index in sorted(choices)],
        "usage": usage,
        "usage_chunks": usage_chunks,
        "chunks_without_choices": chunks_without_choices,
    }


def completion(stream):
    """Text completions, whole or put together from a stream."""
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=16, n=2, stream=stream)
    if not stream:
        return {
            "texts": [choice.text for choice in answer.choices],
            "usage": usage_of(answer),
        }
    texts, usage_chunks = {}, 0
    for chunk in answer:
        usage_chunks += chunk.usage is not None
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    return {"texts": [texts[index] for index in sorted(texts)], "usage_chunks": usage_chunks}


def told(response):
    usage = response.usage
    return {
        "text": response.output_text,
        "status": response.status,
        "store": getattr(response, "store", None),
        "usage": {"input": usage.input_tokens, "output": usage.output_tokens, "total": usage.total_tokens},
    }


def response(speaker=None, **more):
    speaker = speaker or client
    return told(speaker.responses.create(model=MODEL, input=PROMPT, max_output_tokens=16, **more))


def response_stream():
    text, last = "", None
    for event in client.responses.create(model=MODEL, input=PROMPT, max_output_tokens=16, stream=True):
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            last = told(event.response)
    return {"deltas": text, "last": last}


def azure():
    return AzureOpenAI(azure_endpoint=GATEWAY, api_key=KEY, api_version="2024-10-21")


def azure_chat():
    """Azure's client names the deployment in the path, and sends its key in a header of its own."""
    return whole(azure().chat.completions.create(model=MODEL, messages=MESSAGES, max_completion_tokens=16))


def kept():
    """What an application is told that wants something kept, where nothing may be."""
    return failure(lambda: response(store=True), OpenAIError)


def embeddings():
    answer = client.embeddings.create(model="text-embedding-4", input=["a river", "a border"])
    return {
        "vectors": len(answer.data),
        "lengths": [len(vector.embedding) for vector in answer.data],
        "input": answer.usage.prompt_tokens,
    }


def aborted():
    """Reads a few chunks of a long stream and closes it."""
    stream = create("gap=100ms", max_tokens=1000, stream=True)
    read = [next(stream) for _ in range(3)]
    stream.close()
    return {"chunks": len(read)}


def refused(**request):
    return failure(lambda: create(**request), OpenAIError)


def spent():
    """Spends what the key has, then asks for more."""
    first = whole(create("tokens=150", max_tokens=150))
    return {"first": first, "then": refused(max_tokens=150)}


def hasty():
    """Asks again at once, and again: patience is left to the SDK."""
    return {"finishes": [create().choices[0].finish_reason for _ in range(3)]}


run(
    {
        "plain": lambda: whole(create()),
        "stream": lambda: streamed(create(stream=True)),
        "stream_usage": lambda: streamed(create(stream=True, stream_options={"include_usage": True})),
        "stream_usage_declined": lambda: streamed(create(stream=True, stream_options={"include_usage": False})),
        "tools": lambda: whole(create(tools=[WEATHER], tool_choice=FORCED)),
        "tools_stream": lambda: streamed(create(tools=[WEATHER], tool_choice=FORCED, stream=True)),
        "three_choices": lambda: whole(create(n=3)),
        "three_choices_stream": lambda: streamed(create(n=3, stream=True)),
        "completion": lambda: completion(False),
        "completion_stream": lambda: completion(True),
        "response": response,
        "response_stream": response_stream,
        "azure_chat": azure_chat,
        "azure_response": lambda: response(azure()),
        "kept": kept,
        "embeddings": embeddings,
        "models": lambda: {"ids": [model.id for model in client.models.list()]},
        "aborted": aborted,
        "refused": refused,
        "too_large": lambda: refused(max_tokens=100_000),
        "unknown_model": lambda: refused(model="no-such-model"),
        "spent": spent,
        "hasty": hasty,
    }
)
