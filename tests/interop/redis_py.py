"""Does with redis-py's Lock what it is told on standard input, one line each, and answers with one line."""
import sys

import redis

port, name = int(sys.argv[1]), sys.argv[2]
client = redis.Redis(port=port)
lock = client.lock(name, timeout=30, sleep=0.002)

for line in sys.stdin:
    verb, *rest = line.split()
    try:
        if verb == "try":
            answer = "held" if lock.acquire(blocking=False) else "busy"
        elif verb == "wait":
            answer = "held" if lock.acquire(blocking_timeout=10) else "busy"
        elif verb == "extend":
            lock.extend(int(rest[0]), replace_ttl=True)
            answer = "extended"
        elif verb == "release":
            lock.release()
            answer = "released"
        elif verb == "count":
            for _ in range(int(rest[0])):
                with lock:
                    # Not atomic: an update would be lost if two were inside.
                    client.set("sum", int(client.get("sum") or 0) + 1)
            answer = "counted"
    except redis.exceptions.LockError as error:
        answer = type(error).__name__
    print(answer, flush=True)
