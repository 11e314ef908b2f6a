# Asks the test's server by TCP again and again, by one connection. It ends when an answer is wrong, or none comes.
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
