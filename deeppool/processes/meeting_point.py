"""Where the ranks of a run on several machines meet: a store of torch.distributed, and the interface that leads to it.

The process that starts the ranks holds the store's socket from the moment its port is chosen, and all ranks are
clients. A port that is chosen, released and bound again later by a rank can be taken by another process in between.
"""

import contextlib
import ipaddress
import socket
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"


def is_loopback(address: str) -> bool:
    """Whether an address is reachable only from its own machine."""
    return address in ("localhost", "::1") or address.startswith("127.")


def listen(address: str) -> socket.socket:
    """Listens at a port that the system chooses, at an address of this machine only.

    On every interface if ``address`` is none of them, as where a container's address is translated, or if its name
    means the loopback here and, as with Debian's ``/etc/hosts``, another address elsewhere.
    """
    if is_loopback(address):
        return socket.create_server((LOOPBACK, 0))
    with contextlib.suppress(OSError):
        for family, _, _, _, (host, *_) in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM):
            if not is_loopback(str(host)):
                return socket.create_server((host, 0), family=family)
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", 0))
    return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)


def open_store(listener: socket.socket, address: str) -> "TCPStore":
    """Creates a store on a listening socket, which it takes over: the store's own would listen on every interface.

    Args:
        listener: result of :func:`listen`.
        address: address of this machine as the ranks reach it.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    port = listener.getsockname()[1]
    return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def store_url(store: "TCPStore") -> str:
    """Returns the rendezvous of a store: ``tcp://host:port``."""
    host = f"[{store.host}]" if ":" in store.host else store.host
    return f"tcp://{host}:{store.port}"


def join_store(rendezvous: str, timeout: timedelta) -> "TCPStore":
    """Connects to the store of a rendezvous ``tcp://host:port``."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = _host_and_port(rendezvous)
    return TCPStore(host, port, is_master=False, timeout=timeout)


def interface_of(address: str) -> str | None:
    """Returns the network interface with an address, or None if none is known."""
    import psutil

    if ipaddress.ip_address(address).is_loopback:
        return "lo"
    found = psutil.net_if_addrs().items()
    return next((name for name, held in found if any(one.address.split("%")[0] == address for one in held)), None)


def interface_towards(rendezvous: str) -> str | None:
    """Returns the interface from which this machine reaches a rendezvous ``tcp://host:port``; None if unknown.

    gloo by itself takes the interface to which this machine's host name resolves: the loopback on many
    distributions, or a management network.
    """
    host, port = _host_and_port(rendezvous)
    with contextlib.suppress(OSError):
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # No packet is sent: the system only chooses the route, and with it the sender's address.
            probe.connect(address)
            return interface_of(str(probe.getsockname()[0]).split("%")[0])
    return None


def _host_and_port(rendezvous: str) -> tuple[str, int]:
    found = urlsplit(rendezvous)
    if found.scheme != "tcp" or found.hostname is None or found.port is None:
        raise ValueError(f"a rendezvous of several machines is tcp://host:port, got {rendezvous}")
    return found.hostname, found.port
