# Counts the UDP datagrams that the host accepts: at its sockets, and by device at a packet socket for IPv4. Packets
# that a switch takes from the device do not reach that socket. /run/heard has the counts.
import json, os, select, socket

PORTS = 7, 9
heard = {}
sockets = {}
for port in PORTS:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind(("", port))
    sockets[s] = port
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
for s in [packets, *sockets]:
    s.setblocking(False)
    # Enough room while the machine is busy with other work.
    s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE


def count(key):
    heard[key] = heard.get(key, 0) + 1


def write():
    with open("/run/heard.new", "w") as f:
        json.dump(heard, f)
    os.rename("/run/heard.new", "/run/heard")


write()
manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
manager.sendto(b"READY=1", os.environ["NOTIFY_SOCKET"])
while True:
    ready, _, _ = select.select([packets, *sockets], [], [])
    for s in ready:
        for _ in range(100):
            try:
                packet, of = s.recvfrom(2048)
            except BlockingIOError:
                break
            if s is not packets:
                count(f"socket {sockets[s]}")
                continue
            length = (packet[0] & 15) * 4
            port = int.from_bytes(packet[length + 2 : length + 4], "big")
            if packet[9] == socket.IPPROTO_UDP and of[2] != socket.PACKET_OUTGOING and port in PORTS:
                count(f"{of[0]} {port}")
    write()
