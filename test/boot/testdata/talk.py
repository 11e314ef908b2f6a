# Sends requests to the test's server over one TCP connection. Ends when an answer is wrong or missing.
import socket
import time

s = socket.create_connection(("192.0.2.1", 7))
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
n = 0
while True:
    asked = n.to_bytes(8, "big")
    s.sendall(asked)
    if s.recv(8, socket.MSG_WAITALL) != asked:
        raise SystemExit(f"the answer to question {n} is wrong")
    n += 1
    time.sleep(0.01)
