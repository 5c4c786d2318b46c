"""What an application does with Google's official SDK, one function for each scenario."""

from google import genai
from google.genai import errors, types

from scenario import GATEWAY, KEY, PROMPT, failure, run

MODEL = "gemini-2.5-flash"
client = genai.Client(api_key=KEY, vertexai=False, http_options=types.HttpOptions(base_url=GATEWAY))


def config(**more):
    return types.GenerateContentConfig(max_output_tokens=16, **more)


def usage_of(answer):
    usage = answer.usage_metadata
    return usage and {
        "input": usage.prompt_token_count,
        "output": usage.candidates_token_count,
        "total": usage.total_token_count,
    }


def plain(**more):
    answer = client.models.generate_content(model=MODEL, contents=PROMPT, config=config(**more))
    return {"text": answer.text, "finish": answer.candidates[0].finish_reason, "usage": usage_of(answer)}


def stream():
    text, usage = "", None
    for chunk in client.models.generate_content_stream(model=MODEL, contents=PROMPT, config=config()):
        text += chunk.text or ""
        usage = usage_of(chunk)
    return {"text": text, "usage": usage}


def refused(model=MODEL, **more):
    def ask():
        client.models.generate_content(model=model, contents=PROMPT, config=types.GenerateContentConfig(**more))

    report = failure(ask, errors.APIError)
    try:
        ask()
    except errors.APIError as error:
        report["status_word"] = error.status
    return report


run(
    {
        "plain": plain,
        "system": lambda: plain(system_instruction="Be brief."),
        "stream": stream,
        "count": lambda: {"total": client.models.count_tokens(model=MODEL, contents=PROMPT).total_tokens},
        "models": lambda: {"names": [model.name for model in client.models.list()]},
        "too_large": lambda: refused(max_output_tokens=1_000_000),
        "unknown_model": lambda: refused(model="no-such-model"),
    }
)
