"""Echo, biases, penalties and log probabilities, as clients of OpenAI's interface see them."""

import math

from serve_client import events


def joined(chunks, name):
    """The lists under that name of all chunks' log probabilities, one after the other."""
    return [one for chunk in chunks[:-1] for choice in chunk["choices"] for one in (choice["logprobs"] or {name: []})[name]]


def answers_with_options(server, check):
    path, prompt = "/v1/completions", {"prompt": "The ", "max_tokens": 30, "seed": 5}
    def choice(change, of=prompt, where=path):
        status, _, answer = server.ask(where, {**of, **change})
        check(f"an answer with {list(change)}", status == 200, answer)
        return answer["choices"][0]
    def chunks(change, of=prompt, where=path):
        return events(server.stream(where, {**of, **change})[1])
    text = choice({})["text"]
    check("zeros are absent", choice({"presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}, "echo": False,
                                      "suffix": None, "top_logprobs": None}) == choice({}))

    check("echo", choice({"echo": True})["text"] == "The " + text)
    check("echo in a stream", "".join(chunk["choices"][0]["text"] for chunk in chunks({"echo": True})[:-1]) == "The " + text)
    status, _, answer = server.ask(path, {**prompt, "prompt": ["The ", "A "], "n": 2, "echo": True, "stop": "T"})
    starts = [one["text"][:2] for one in answer["choices"]]
    check("echo of each, where nothing stops", starts == ["Th", "Th", "A ", "A "], answer)
    words = int(server.ask(path, {**prompt, "prompt": [10**6]})[2]["error"]["message"].split("below ")[1].split(",")[0])
    alphabet = choice({"prompt": list(range(words)), "echo": True, "max_tokens": 1})["text"][:-1]
    check("echo of tokens", len(alphabet) == len(set(alphabet)) == words and "e" in alphabet, alphabet)
    e = str(alphabet.index("e"))

    check("a bias for a token", choice({"logit_bias": {e: 100}})["text"] == "e" * 30)
    check("against it", "e" not in choice({"logit_bias": {e: -100}, "temperature": 2, "max_tokens": 1000})["text"])

    # The 20 most probable tokens of 12 places: which one the penalties leave is among them.
    chat, messages = "/v1/chat/completions", {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 12,
                                              "temperature": 0, "logprobs": True}
    for presence, frequency in ((0, 0), (2, 0), (0, 1.5), (0.3, 0.2), (-1, 0.5)):
        options = {"presence_penalty": presence, "frequency_penalty": frequency, "top_logprobs": 20}
        answer, written = choice(options, messages, chat), ""
        for place in answer["logprobs"]["content"]:
            left = {top["token"]: top["logprob"] - frequency * written.count(top["token"])
                    - presence * (top["token"] in written) for top in place["top_logprobs"]}
            check("the penalties' choice", place["token"] == max(left, key=left.get), presence, frequency, written, place)
            tops = [top["logprob"] for top in place["top_logprobs"]]
            check("20 of them in order", len(tops) == 20 and tops == sorted(tops, reverse=True), place)
            check("probabilities", tops[0] < 0 and sum(math.exp(top) for top in tops) < 1, place)
            written += place["token"]
        check("all tokens", written == answer["message"]["content"] and len(written) == 12, answer)
        check("in a stream", joined(chunks(options, messages, chat), "content") == answer["logprobs"]["content"])
    place = answer["logprobs"]["content"][0]
    check("a chat's token", set(place) == {"token", "logprob", "bytes", "top_logprobs"}
          and place["bytes"] == list(place["token"].encode()) and set(place["top_logprobs"][0]) == {"token", "logprob", "bytes"}, place)
    check("nothing refused", answer["logprobs"]["refusal"] is None)
    check("of the token alone", all(one["top_logprobs"] == [] for one in choice({}, messages, chat)["logprobs"]["content"]))
    check("none", choice({"logprobs": False}, messages, chat)["logprobs"] is None)

    whole = choice({"logprobs": 3})
    of = whole["logprobs"]
    check("the same text", whole["text"] == text)
    check("a completion's tokens", of["tokens"] == list(text) and of["text_offset"] == list(range(30)), of)
    for token, logprob, top in zip(of["tokens"], of["token_logprobs"], of["top_logprobs"]):
        check("the token is there, too", top[token] == logprob and len(top) in (3, 4), token, logprob, top)
        check("beside the most probable", logprob < 0 and (len(top) == 3 or logprob == min(top.values())), token, logprob, top)
    streamed = chunks({"logprobs": 3})
    check("the same in a stream", {name: joined(streamed, name) for name in of} == of, streamed, of)
    check("with their characters", all("".join((one["logprobs"] or {"tokens": []})["tokens"]) == one["text"]
                                       for chunk in streamed[:-1] for one in chunk["choices"]), streamed)
    alone = choice({"logprobs": 0})["logprobs"]
    check("of tokens alone", alone["top_logprobs"] == [{t: p} for t, p in zip(of["tokens"], of["token_logprobs"])], alone)
    biased = choice({"logprobs": 3, "logit_bias": {e: 100}, "temperature": 0.1})["logprobs"]["top_logprobs"][0]
    check("of the model, whatever the bias", {**biased, text[0]: 0, "e": 0} == {**of["top_logprobs"][0], text[0]: 0, "e": 0}, biased, of)
    stop = text[20:23]
    expected = text[:text.index(stop)]
    stopped = choice({"logprobs": 1, "stop": stop})
    check("up to a stop string", "".join(stopped["logprobs"]["tokens"]) == stopped["text"] == expected, stopped)
    check("in a stream up to it", "".join(joined(chunks({"logprobs": 1, "stop": stop}), "tokens")) == expected)
    two = server.ask(path, {**prompt, "n": 2, "logprobs": 1})[2]["choices"]
    check("of each text", ["".join(one["logprobs"]["tokens"]) for one in two] == [one["text"] for one in two], two)
