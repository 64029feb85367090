"""A TCP proxy between SuperNodes and their SuperLink that counts bytes."""

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from contextlib import suppress


class CountingProxy:
    """Forwards a port of 127.0.0.1 to another one. The bytes are not interpreted, so TLS passes through."""

    def __init__(self, port: int) -> None:
        self.port = 0
        self.up = self.down = 0
        """Bytes from the nodes, and to them."""
        self._to = port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> "CountingProxy":
        self._thread.start()
        if not self._ready.wait(60):
            raise RuntimeError("the proxy did not start within 60 s")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()  # no wait_closed: nodes may stay connected, and asyncio.run ends their connections

    async def _connect(self, from_node: StreamReader, to_node: StreamWriter) -> None:
        """Forward both directions until one side disconnects or the proxy ends."""
        with suppress(OSError, asyncio.CancelledError):
            from_link, to_link = await asyncio.open_connection("127.0.0.1", self._to)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(from_node, to_link, "up"))
                both.create_task(self._forward(from_link, to_node, "down"))
        to_node.close()

    async def _forward(self, source: StreamReader, sink: StreamWriter, direction: str) -> None:
        try:
            while part := await source.read(1 << 16):
                setattr(self, direction, getattr(self, direction) + len(part))
                sink.write(part)
                await sink.drain()
        except OSError:  # the connection was reset, for example because a node was killed
            return
        finally:
            sink.close()
