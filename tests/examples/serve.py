#!/usr/bin/env python3
"""serve.py <folder of programs> <tree>: what the server answers to good, bad, slow and vanishing clients."""

import concurrent.futures
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from serve_client import Server, events, pictures
from serve_sampling import answers_with_options

programs, tree = sys.argv[1:]
failures = 0


def check(what, condition, *seen):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}", *seen, flush=True)


def program(name):
    return os.path.join(programs, name)


def run(name, *arguments):
    return subprocess.run([program(name), *arguments], capture_output=True, text=True)


def error(answer, status, *words):
    """An error as OpenAI's clients want it."""
    code, _, content = answer
    good = code == status and set(content["error"]) == {"message", "type", "param", "code"}
    check(f"status {status} with {words}", good and all(word in json.dumps(content) for word in words), answer)


def digits(server):
    rows, columns, images, labels = pictures(os.path.join(tree, "docs/examples/data/digits"))
    check("the shape", server.ask("/v1/digits")[2] == {"rows": rows, "columns": columns})
    answers = [server.ask("/v1/digits", {"pixels": image})[2] for image in images[:40]]
    for answer in answers:
        chances = answer["probabilities"]
        check("probabilities", len(chances) == 10 and abs(sum(chances) - 1) < 1e-6, answer)
        check("the most probable digit", answer["digit"] == chances.index(max(chances)), answer)
    right = sum(answer["digit"] == label for answer, label in zip(answers, labels))
    check("digits are known", right >= 32, right)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        together = list(pool.map(lambda image: server.ask("/v1/digits", {"pixels": image})[2], images[:40]))
    for one, other in zip(answers, together):
        near = max(abs(a - b) for a, b in zip(one["probabilities"], other["probabilities"])) < 1e-4
        check("the same answer in a batch", near, one, other)
    size = rows * columns
    for pixels in (None, [], [0.5] * (size - 1), [0.5] * (size - 1) + ["1"], [1.5] * size, {"0": 1}, [-1] * size):
        error(server.ask("/v1/digits", {"pixels": pixels}), 400, "pixels", f"{size} numbers")


def completions(server):
    path, prompt = "/v1/completions", {"prompt": "The ", "max_tokens": 40, "seed": 5, "model": "train_text"}
    status, _, whole = server.ask(path, prompt)
    check("a completion", status == 200 and whole["object"] == "text_completion", whole)
    text = whole["choices"][0]["text"]
    check("usage", whole["usage"] == {"prompt_tokens": 4, "completion_tokens": 40, "total_tokens": 44}, whole)
    check("finish_reason", whole["choices"][0]["finish_reason"] == "length" and len(text) == 40, whole)
    check("the same seed", server.ask(path, prompt)[2]["choices"][0]["text"] == text)
    check("another seed", server.ask(path, {**prompt, "seed": 6})[2]["choices"][0]["text"] != text)

    connection, response = server.stream(path, {**prompt, "stream_options": {"include_usage": True}})
    check("a stream", response.status == 200 and response.getheader("Content-Type") == "text/event-stream")
    chunks = events(response)
    connection.close()
    check("[DONE]", chunks[-1] is None and None not in chunks[:-1])
    check("one id", len({chunk["id"] for chunk in chunks[:-1]}) == 1)
    parts = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    check("the stream has the same text", "".join(part["text"] for part in parts) == text, text, parts)
    check("one finish_reason", [part["finish_reason"] for part in parts if part["finish_reason"]] == ["length"])
    check("usage in the last event", chunks[-2]["choices"] == [] and chunks[-2]["usage"] == whole["usage"], chunks[-2])
    check("no usage before", all(chunk["usage"] is None for chunk in chunks[:-2]))

    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        many = list(pool.map(lambda _: server.ask(path, {**prompt, "temperature": 0.01})[2]["choices"][0]["text"],
                             range(20)))
    check("20 clients at once", len(set(many)) == 1 and len(many[0]) == 40, set(many))

    stop = text[20:23]
    at = text.index(stop)
    stopped = server.ask(path, {**prompt, "stop": [stop, "a text that does not come"]})[2]
    check("a stop string", stopped["choices"][0]["text"] == text[:at], stop, text, stopped)
    check("its reason", stopped["choices"][0]["finish_reason"] == "stop")
    chunks = events(server.stream(path, {**prompt, "stop": stop})[1])
    check("a stop string in a stream", "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1]) == text[:at])
    tokens = server.ask(path, {**prompt, "prompt": [1, 2, 3], "temperature": 0, "top_p": 0.5})[2]
    check("tokens as prompt", tokens["usage"]["prompt_tokens"] == 3, tokens)
    choices(server, path, {**prompt, "max_tokens": 20})
    check("null is absent", server.ask(path, {**prompt, "stop": None, "n": 1, "logprobs": None, "user": "x"})[0] == 200)

    for change, word in (({"temperature": 3}, "temperature"), ({"temperature": "1"}, "temperature"), ({"top_p": -1}, "top_p"),
                         ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 1.5}, "max_tokens"), ({"n": 17}, "16"),
                         ({"n": 0}, "\"n\""), ({"n": 2, "best_of": 3}, "best_of"), ({"prompt": ["The "] * 17}, "16"),
                         ({"prompt": ["The "] * 4, "n": 5}, "from 1 to 4"), ({"prompt": ["The ", [1]], "n": 9}, "to 8"),
                         ({"logprobs": 6}, "from 0 to 5"), ({"stop": ["a"] * 5}, "stop"), ({"stop": [""]}, "stop"),
                         ({"stream": 1}, "stream"), ({"prompt": ["a", ""]}, "prompt"), ({"prompt": ["a", 7]}, "prompt"), ({"prompt": [999]}, "prompt"),
                         ({"prompt": ""}, "prompt"), ({"prompt": "\u00e9"}, "unknown_character"), ({"prompt": 7}, "prompt"),
                         ({"prompt": "a" * 5000}, "context_length_exceeded"), ({"seed": "x"}, "seed"),
                         ({"logprobs": True}, "logprobs"), ({"top_logprobs": 2}, "top_logprobs"), ({"echo": 1}, "echo"),
                         ({"echo": True, "logprobs": 0}, "probabilities of prompts"), ({"prompt": [[[]]]}, "prompt"),
                         ({"presence_penalty": 2.1}, "from -2.0 to 2.0"), ({"frequency_penalty": -2.1}, "frequency_penalty"),
                         ({"frequency_penalty": "1"}, "frequency_penalty"), ({"logit_bias": [1]}, "logit_bias"),
                         ({"logit_bias": {"e": 2}}, "tokens below"), ({"logit_bias": {"-1": 2}}, "tokens below"),
                         ({"logit_bias": {"99999999999999999999": 2}}, "tokens below"), ({"logit_bias": {"1 ": 2}}, "logit_bias"),
                         ({"logit_bias": {"999": 2}}, "tokens below"), ({"logit_bias": {"01": 2}}, "tokens below"),
                         ({"logit_bias": {"1": 101}}, "from -100 to 100"), ({"logit_bias": {"1": "2"}}, "logit_bias")):
        error(server.ask(path, {**prompt, **change}), 400, word)
    error(server.ask(path, {"max_tokens": 3}), 400, "missing_required_parameter")
    error(server.ask(path, {**prompt, "model": "gpt-4"}), 404, "model_not_found")

    chat = {"messages": [{"role": "user", "content": "Who?"}], "max_completion_tokens": 10, "seed": 1}
    status, _, answer = server.ask("/v1/chat/completions", chat)
    message = answer["choices"][0]["message"]
    check("a chat", status == 200 and answer["object"] == "chat.completion" and message["role"] == "assistant", answer)
    parts = [{"role": "user", "content": [{"type": "text", "text": "Who?"}]}]
    same = server.ask("/v1/chat/completions", {**chat, "messages": parts})[2]
    check("content in parts", same["choices"][0]["message"] == message, same, message)
    as_prompt = server.ask(path, {"prompt": "user: Who?\nassistant:", "max_tokens": 10, "seed": 1})[2]
    check("the template", as_prompt["choices"][0]["text"] == message["content"], as_prompt, message)
    chunks = events(server.stream("/v1/chat/completions", chat)[1])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    check("a chat's stream", deltas[0] == {"role": "assistant", "content": ""} and deltas[-1] == {}, deltas)
    check("its text", "".join(delta.get("content", "") for delta in deltas) == message["content"], deltas)
    two = server.ask("/v1/chat/completions", {**chat, "n": 2})[2]["choices"]
    check("two answers", [choice["index"] for choice in two] == [0, 1] and two[0]["message"] == message, two)
    chunks = events(server.stream("/v1/chat/completions", {**chat, "n": 2})[1])
    deltas = [(choice["index"], choice["delta"]) for chunk in chunks[:-1] for choice in chunk["choices"]]
    check("roles first", deltas[:2] == [(i, {"role": "assistant", "content": ""}) for i in range(2)], deltas)
    check("their texts", ["".join(delta.get("content", "") for i, delta in deltas if i == k) for k in range(2)] ==
          [choice["message"]["content"] for choice in two], deltas, two)
    for messages in (None, [], "hi", [{"content": "x"}], [{"role": "user", "content": 3}]):
        error(server.ask("/v1/chat/completions", {**chat, "messages": messages}), 400, "messages")
    for change, word in (({"logprobs": 2}, "logprobs"), ({"top_logprobs": 2}, "logprobs to be true"), ({"echo": True}, "echo"),
                         ({"logprobs": False, "top_logprobs": 2}, "logprobs to be true"),
                         ({"logprobs": True, "top_logprobs": 21}, "from 0 to 20")):
        error(server.ask("/v1/chat/completions", {**chat, **change}), 400, word)


def sampling(server):
    answers_with_options(server, check)


def choices(server, path, prompt):
    """Several prompts, and several texts of each."""
    alone = {(text, seed): server.ask(path, {**prompt, "prompt": text, "seed": seed})[2]["choices"][0]["text"]
             for text in ("The ", "A ") for seed in (5, 6)}
    many = {**prompt, "prompt": ["The ", "A "], "n": 2}
    _, _, whole = server.ask(path, many)
    check("the choices in order", [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3], whole)
    check("each as it is alone", [choice["text"] for choice in whole["choices"]] == list(alone.values()), whole, alone)
    check("usage of them all", whole["usage"] == {"prompt_tokens": 6, "completion_tokens": 80, "total_tokens": 86}, whole)
    chunks = events(server.stream(path, {**many, "stream_options": {"include_usage": True}})[1])
    check("[DONE] behind all", chunks[-1] is None and chunks[-2]["usage"] == whole["usage"], chunks[-2:])
    parts = [choice for chunk in chunks[:-1] for choice in chunk["choices"]]
    texts = ["".join(part["text"] for part in parts if part["index"] == i) for i in range(4)]
    check("streams of the same texts", texts == list(alone.values()), texts, alone)
    ends = sorted((part["index"], part["finish_reason"]) for part in parts if part["finish_reason"])
    check("an end of each", ends == [(i, "length") for i in range(4)], ends)
    stop = alone["A ", 5][4:7]  # ends some of them early
    stopped = server.ask(path, {**many, "stop": stop})[2]["choices"]
    expected = [text[:text.index(stop)] if stop in text else text for text in alone.values()]
    check("each stops by itself", [choice["text"] for choice in stopped] == expected, stopped, expected)
    chunks = events(server.stream(path, {**many, "stop": stop})[1])
    texts = ["".join(chunk["choices"][0]["text"] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == i)
             for i in range(4)]
    check("in a stream, too", texts == expected, texts, expected)


def protocol(server):
    status, headers, page = server.ask("/")
    check("the page", status == 200 and b"</html>" in page and headers["Content-Type"].startswith("text/html"))
    check("nothing of other sites", b"http://" not in page and b"https://" not in page)
    check("health", server.ask("/health")[2] == {"status": "ok", "model": "train_text", "digits": {"rows": 8, "columns": 8}})
    check("models", [model["id"] for model in server.ask("/v1/models")[2]["data"]] == ["train_text"])
    check("a model", server.ask("/v1/models/train_text")[2]["object"] == "model")
    metrics = server.ask("/metrics")[2].decode()
    for name in ("lockstep_pool_requests_total{pool=\"digits\"", "lockstep_generation_tokens_total{model=\"train_text\""):
        check(f"metric {name}", name in metrics)
    types = [line for line in metrics.splitlines() if line.startswith("# TYPE")]
    check("each metric once", len(types) == len(set(types)))

    path = "/v1/completions"
    for body in (b"", b"{", b"[]", b"nonsense", b'{"prompt": "a"} b', b"\xff\xfe", b"[" * 100_000):
        error(server.ask(path, body), 400)
    error(server.ask(path, b'{"prompt": ' + b"[" * 40 + b"1" + b"]" * 40 + b"}"), 400, "levels")
    error(server.ask(path, b"prompt=a", headers={"Content-Type": "text/plain"}), 415, "application/json")
    error(server.ask("/nothing"), 404)
    error(server.ask("/nothing", {}), 404)
    answer = server.ask(path)
    error(answer, 405, "POST")
    check("Allow", answer[1]["Allow"] == "POST", answer[1])
    error(server.ask("/health", {}), 405)
    check("HEAD", server.ask("/health", method="HEAD")[0] == 200)
    error(server.ask(path, b"", headers={"Content-Length": "x"}), 400)

    large = b'{"prompt": "' + b"a" * (2 << 20) + b'"}'
    error(server.ask(path, large), 413)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    for body in (b"Content-Length: 99999999999999999999\r\n\r\n", b"Content-Length: 2097152\r\n\r\n",
                 b"Transfer-Encoding: chunked\r\n\r\n200000\r\n" + large[:0x200000]):
        with server.raw() as connection:
            try:
                connection.sendall(head + body)
            except OSError:
                pass  # it need not be read to its end
            check("413", connection.recv(100).startswith(b"HTTP/1.1 413"), body[:60])
    with server.raw(b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 17_000) as connection:
        check("a long head", connection.recv(100).startswith(b"HTTP/1.1 431"))
    for ranges in ("0-1", ",".join(["0-1"] * 3000), "nonsense"):
        answer = server.ask("/", headers={"rAnGe": "bytes=" + ranges, "Range": "bytes=9-"})
        check("no ranges", answer[0] == 200 and answer[2] == page, ranges[:20], answer[:2])
    with server.raw(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: a\r\n"
                    b"Connection: close\r\n\r\n") as connection:
        data = b""
        while piece := connection.recv(65536):
            data += piece
        check("two requests at once", data.count(b"HTTP/1.1 200") == 2 and b'"list"' in data, data)
    for junk in (b"\0" * 100, b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", os.urandom(500)):
        server.raw(junk).close()


LONG = {"prompt": "The ", "max_tokens": 100_000, "seed": 1}


def clients_that_vanish(server):
    ended = lambda: sum(server.metric(f'lockstep_generation_requests_total{{model="train_text",outcome="{how}"}}')
                        for how in ("finished", "cancelled"))
    pages = 'lockstep_generation_cache_pages{model="train_text",state="used"}'
    cancelled = 'lockstep_generation_requests_total{model="train_text",outcome="cancelled"}'
    check("no pages before", server.metric(pages) == 0)
    before, cancelled_before = ended(), server.metric(cancelled)
    streams = []
    for _ in range(200):  # two are written, 24 wait, the next is refused
        connection, response = server.stream("/v1/completions", LONG)
        if response.status != 200:
            error((response.status, None, json.loads(response.read())), 429, "queue_full")
            check("Retry-After", response.getheader("Retry-After") == "1")
            connection.close()
            break
        streams.append((connection, response))
    check("the queue becomes full", len(streams) < 200)
    waiting = server.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n"
                         b'{"prompt": "The ')  # not the whole
    streams[0][1].read(10)
    check("pages are used", server.metric(pages) > 0)
    for connection, response in streams:
        response.close()
        connection.close()
    server.wait_for("all texts have ended", lambda: ended() == before + len(streams))
    server.wait_for("all pages are free", lambda: server.metric(pages) == 0)
    check("they were cancelled", server.metric(cancelled) > cancelled_before)
    waiting.close()

    # Those that wait for a whole answer, where no write fails.
    body = json.dumps(LONG).encode()
    before, cancelled_before = ended(), server.metric(cancelled)
    silent = [server.raw(b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" %
                         (len(body), body)) for _ in range(20)]
    for connection in silent:
        connection.close()
    server.wait_for("connections are closed", lambda: server.metric("serve_connections") == 1)
    server.wait_for("silent texts have ended", lambda: server.metric('lockstep_generation_requests{model="train_text",state="queued"}') == 0
                    and server.metric(pages) == 0)
    taken = ended() - before  # those whose client had gone before they were read are no requests of the generator
    check("silent ones were cancelled", taken == 0 or server.metric(cancelled) > cancelled_before, taken)
    check("it goes on", server.ask("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200)


def slow_clients(server):
    slow = [server.raw(b"GET /health HTTP/1.1\r\nHost") for _ in range(75)]
    slow += [server.raw(b"POST /v1/digits HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{")
             for _ in range(75)]
    check("150 slow clients", server.ask("/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200)
    for connection in slow:
        connection.close()


def stop(server):
    streams = [server.stream("/v1/completions", {**LONG, "max_tokens": 1500}) for _ in range(4)]
    server.signal()
    server.wait_for("it stops", lambda: server.ask("/health")[0] == 503)
    error(server.ask("/v1/completions", LONG), 503, "stopping")
    for connection, response in streams:
        check("texts are finished", events(response)[-1] is None)
        connection.close()
    check("exit status", server.end() == 0, server.process.returncode)


def main(folder):
    text, digit = os.path.join(folder, "text"), os.path.join(folder, "digits")
    data = os.path.join(folder, "data")
    with open(os.path.join(tree, "CONTRIBUTING.md"), encoding="utf-8") as source, open(data, "w") as target:
        target.write("".join(c for c in source.read() if ord(c) < 128))  # so that each token is a character
    trained = run("train_text", "--data", data, "--threads", "1", "--steps", "2", "--batch-size", "1",
                  "--context", "4096", "--layers", "2", "--width", "32", "--sample", "0", "--save", text)
    check("train_text", trained.returncode == 0, trained)
    trained = run("train_digits", "--devices", "1", "--steps", "250", "--save", digit)
    check("train_digits", trained.returncode == 0, trained)
    logits = run("text_logits", text)
    check("the cached model's logits", logits.returncode == 0, logits)

    server = Server(program("serve"), "--digits", digit, "--text", text, "--sequences", "2", "--queue", "24",
                    "--stop-seconds", "100")
    for part in (protocol, digits, completions, sampling, slow_clients, clients_that_vanish, stop):
        began = time.monotonic()
        part(server)
        print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)

    # A token, and what is not served.
    server = Server(program("serve"), "--digits", digit, LOCKSTEP_SERVE_TOKEN="a secret")
    check("health needs no token", server.ask("/health")[0] == 200 and server.ask("/")[0] == 200)
    for headers in ({}, {"Authorization": "Bearer a secre"}, {"Authorization": "Bearer a secreT"},
                    {"Authorization": "a secret"}):
        error(server.ask("/v1/models", headers=headers), 401, "authentication_error")
        error(server.ask("/v1/digits", {"pixels": []}, headers=headers), 401, "authentication_error")
    right = {"Authorization": "Bearer a secret"}
    check("the token", server.ask("/v1/models", headers=right)[2] == {"object": "list", "data": []})
    error(server.ask("/v1/completions", LONG, headers=right), 404)
    taken = run("serve", "--digits", digit, "--port", str(server.port))
    check("a port that is taken", taken.returncode == 2 and "--port" in taken.stderr, taken)
    server.signal(signal.SIGINT)
    check("exit status after Ctrl-C", server.end() == 0)

    # A folder as models are published, with a tokenizer of single characters.
    published = os.path.join(folder, "small-gpt")
    shutil.copytree(os.path.join(tree, "tests/golden/models/gpt2"), published)
    characters = "abcdefghijklmnopqrstuvwxyz<|>\u0120"  # the last one is GPT-2's space
    special = {"id": 63, "content": "<|endoftext|>", "special": True, "single_word": False, "lstrip": False,
               "rstrip": False, "normalized": False}
    with open(os.path.join(published, "tokenizer.json"), "w") as file:
        json.dump({"added_tokens": [special], "normalizer": None, "post_processor": None, "decoder": {"type": "ByteLevel"},
                   "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
                   "model": {"type": "BPE", "merges": [], "vocab": {
                       **{c: i for i, c in enumerate(characters)}, "\u00e2": 40, "<|endoftext|>": 63}}}, file)
    with open(os.path.join(published, "generation_config.json"), "w") as file:
        json.dump({"eos_token_id": [63, list(characters).index("e")]}, file)
    server = Server(program("serve"), "--model", published + "/")
    check("its name", [model["id"] for model in server.ask("/v1/models")[2]["data"]] == ["small-gpt"])
    ask = {"prompt": "a<|endoftext|>", "max_tokens": 1000, "temperature": 2, "model": "small-gpt"}
    ends = set()
    for seed in range(20):
        status, _, answer = server.ask("/v1/completions", {**ask, "seed": seed})
        choice, usage = answer["choices"][0], answer["usage"]
        check("special tokens are text in a prompt", status == 200 and usage["prompt_tokens"] == 14, answer)
        check("the end is no text", "e" not in choice["text"] and "<|endoftext|>" not in choice["text"], answer)
        check("all positions", choice["finish_reason"] == "stop" or usage["total_tokens"] == 48, answer)
        ends.add(choice["finish_reason"])
    check("some end by themselves", "stop" in ends, ends)
    ask = {**ask, "logprobs": 1, "max_tokens": 3, "logit_bias": {"40": 100}}  # the first byte of a character
    answer = server.ask("/v1/completions", ask)[2]["choices"][0]
    check("bytes of a character", answer["logprobs"]["tokens"] == ["bytes:\\xe2"] * 3 and answer["text"] == "\ufffd" * 3, answer)
    answer = server.ask("/v1/completions", {**ask, "logit_bias": {"4": 100}})[2]["choices"][0]
    check("the end has no log probabilities", answer["logprobs"]["tokens"] == [] and answer["finish_reason"] == "stop", answer)
    server.signal()
    check("exit status", server.end() == 0)

    # A second signal, and a deadline that is over.
    for options, signals, status in ((["--stop-seconds", "1000"], 2, 128 + signal.SIGTERM), (["--stop-seconds", "0"], 1, 0)):
        server = Server(program("serve"), "--text", text, "--sequences", "1", *options)
        streams = [server.stream("/v1/completions", LONG) for _ in range(20)]
        server.signal()
        if signals == 2:
            server.wait_for("it stops", lambda: server.ask("/health")[0] == 503)
            server.signal()
        check(f"status after {signals} signals", server.end() == status, server.process.returncode)
        for connection, _ in streams:
            connection.close()

    for arguments, word in (([], "--digits"), (["--text", digit], "train_text"), (["--digits", text], "train_digits"),
                            (["--digits", folder], folder), (["--model", folder], folder), (["--port", "70000"], "--port"),
                            (["--digits", digit, "--device", "tpu:1"], "tpu")):
        bad = run("serve", *arguments)
        good = bad.returncode == 2 and not bad.stdout and bad.stderr.count("\n") == 1 and word in bad.stderr
        check(f"status 2 with {word}", good, bad)


with tempfile.TemporaryDirectory() as folder:
    main(folder)
print(f"{failures} failures")
sys.exit(failures != 0)
