#!/usr/bin/env python3
"""serve_load.py <folder of programs> [seconds]: 200 connections at once, most of them slow, broken or malicious.

Not a test of ctest: it takes a minute. Every answer to a good client must be right, and in the end the server must have
its memory, its threads and its pages back, and stop in order. Prints what happened.
"""

import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time

from serve_client import Server, events, pictures

programs, seconds = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 60
tree = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
counts, wrong, times, lock = {}, [], {}, threading.Lock()
over = threading.Event()


def count(what, took=None):
    with lock:
        counts[what] = counts.get(what, 0) + 1
        if took is not None:
            times.setdefault(what, []).append(took)


def fail(*what):
    with lock:
        wrong.append(" ".join(str(part)[:300] for part in what))


def good_digits(server, random):
    at = random.randrange(len(images))
    began = time.monotonic()
    status, _, answer = server.ask("/v1/digits", {"pixels": images[at]})
    if status == 200 and answer["digit"] == expected_digits[at]:
        count("digits", time.monotonic() - began)
    elif status in (429, 503):
        count("digits told to come later")
    else:
        fail("digits", status, answer)


def good_text(server, random):
    seed = random.randrange(len(expected_texts))
    body = {"prompt": "The ", "max_tokens": 60, "temperature": 0.5, "seed": seed}
    began = time.monotonic()
    if random.random() < 0.5:
        connection, response = server.stream("/v1/completions", body)
        status = response.status
        if status == 200:
            chunks = events(response)
            text = "".join(choice["text"] for chunk in chunks if chunk for choice in chunk["choices"])
            complete = chunks[-1] is None
        connection.close()
    else:
        status, _, answer = server.ask("/v1/completions", body)
        if status == 200:
            text, complete = answer["choices"][0]["text"], True
    if status in (429, 503):
        count("texts told to come later")
    elif status != 200 or not complete or len(text) != 60:
        fail("text", status, text if status == 200 else "")
    else:  # the last bits of sums depend on the neighbours, and with them now and then a draw
        count("texts", time.monotonic() - began)
        count("texts that are those of a lonely client" if text == expected_texts[seed] else "texts that differ from them")


def sends_slowly(server, random):
    with server.raw() as connection:
        for byte in b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nX: ":
            connection.send(bytes([byte]))
            if over.wait(random.random()):
                return
    count("bytes sent one by one")


def reads_slowly(server, random):
    connection, response = server.stream("/v1/completions", {"prompt": "The ", "max_tokens": 4000})
    for _ in range(100):
        if response.status != 200 or not response.read(1) or over.wait(random.random() / 10):
            break
    connection.close()
    count("streams read byte by byte, and left")


def vanishes(server, random):
    connection, response = server.stream("/v1/completions", {"prompt": "The ", "max_tokens": 4000})
    if response.status == 200:
        response.read(random.randrange(1, 2000))
    connection.sock and connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
    connection.close()
    count("streams reset in the middle")


def half_a_body(server, random):
    server.raw(b"POST /v1/digits HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{").close()
    over.wait(0.05)
    count("bodies cut off")


def sends_junk(server, random):
    large = b'{"prompt": "' + b"a" * 3_000_000 + b'"}'
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n"
    with server.raw() as connection:
        try:
            connection.sendall(random.choice((
                random.randbytes(5000), b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n", b"\r\n" * 5000,
                b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000 + b"\r\n",
                b"GET / HTTP/1.1\r\nRange: bytes=" + b"0-1," * 1500 + b"0-1\r\n\r\n",
                head + b"Content-Length: 3000000\r\n\r\n" + large,
                head + b"Content-Length: 18446744073709551615\r\n\r\n" + large,
                head + b"Content-Length: -1\r\n\r\n", head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n" + large,
                head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 50_000,
                head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
                head + b"Content-Length: 900000\r\n\r\n" + b"[" * 900_000,
                b"POST /v1/digits HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 9\r\n\r\n--x\r\n\r\n\r\n")))
            connection.settimeout(30)
            connection.recv(100)
        except OSError:
            pass
    count("junk")


def sleeps(server, random):
    with server.raw():
        over.wait(8)
    count("connections without a word")


def client(kind, server, seed):
    numbers = random.Random(seed)
    while not over.is_set():
        try:
            kind(server, numbers)
        except ConnectionError as error:
            (fail if kind in (good_digits, good_text) else lambda *_: count("broken connections"))(kind.__name__, error)
        except Exception as error:  # a client of this test that ends is a failure of the test
            fail(kind.__name__, repr(error))


def memory(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return int(next(line for line in file if line.startswith("VmRSS")).split()[1]) // 1024


def main(folder):
    global images, expected_digits, expected_texts
    text, digit = os.path.join(folder, "text"), os.path.join(folder, "digits")
    for command in (f"train_text --data {tree}/README.md --threads 1 --steps 60 --batch-size 2 --context 1024 --layers 2 "
                    f"--width 32 --sample 0 --quiet --save {text}", f"train_digits --devices 1 --steps 250 --quiet "
                    f"--save {digit}"):
        if os.system(os.path.join(programs, command) + " >/dev/null"):
            raise SystemExit("training failed")
    server = Server(os.path.join(programs, "serve"), "--digits", digit, "--text", text, "--queue", "200")
    images = pictures(os.path.join(tree, "docs/examples/data/digits"))[2][:100]
    expected_digits = [server.ask("/v1/digits", {"pixels": image})[2]["digit"] for image in images]
    expected_texts = [server.ask("/v1/completions", {"prompt": "The ", "max_tokens": 60, "temperature": 0.5, "seed": seed})[2]
                      ["choices"][0]["text"] for seed in range(10)]
    before = memory(server)
    kinds = ([good_digits] * 20 + [good_text] * 20 + [sends_slowly] * 60 + [reads_slowly] * 30 + [vanishes] * 20 +
             [half_a_body] * 5 + [sends_junk] * 15 + [sleeps] * 30)
    threads = [threading.Thread(target=client, args=(kind, server, i)) for i, kind in enumerate(kinds)]
    print(f"{len(kinds)} connections for {seconds:.0f} s", flush=True)
    for thread in threads:
        thread.start()
    most, end = 0, time.monotonic() + seconds
    while time.monotonic() < end and server.process.poll() is None:
        most = max(most, memory(server))
        time.sleep(0.5)
    over.set()
    for thread in threads:
        thread.join()
    if server.process.poll() is not None:
        raise SystemExit(f"the server ended: {server.process.communicate()}")
    used = 'lockstep_generation_cache_pages{model="train_text",state="used"}'
    server.wait_for("all pages are free", lambda: server.metric(used) == 0)
    server.wait_for("all connections are closed", lambda: server.metric("serve_connections") == 1)
    for what in sorted(counts):
        took = sorted(times.get(what, []))
        print(f"{counts[what]:8} {what}" + (f", median {1000 * took[len(took) // 2]:.0f} ms, of 100 the slowest "
                                            f"{1000 * took[len(took) * 99 // 100]:.0f} ms" if took else ""))
    print(f"memory {before} MiB before, {most} MiB at most, {memory(server)} MiB afterwards; "
          f"{server.metric('serve_requests_total'):.0f} requests, "
          f"{server.metric('serve_refused_connections_total'):.0f} connections refused")
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    status = server.end()
    print(f"exit status {status} after {time.monotonic() - began:.1f} s; {len(wrong)} wrong answers")
    for line in wrong[:10]:
        print("WRONG:", line)
    return status != 0 or bool(wrong) or not counts.get("digits") or not counts.get("texts")


with tempfile.TemporaryDirectory() as folder:
    sys.exit(main(folder))
